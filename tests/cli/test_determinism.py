"""The same input gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import process
from tests.given.models import model_path


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.models
def test_two_compilations(tmp_path: Path) -> None:
    """Of a model with recurrent cells, branches, and weights that are computed meanwhile.

    The order of sets of strings differs between the two processes.
    """
    sizes = ["--dims", "batch=6", "--dims", "sequence=576", "--strategy", "data:0,fsdp:1"]
    printed = []
    for seed in ("1", "2"):
        words = ["compile", model_path("silero_vad"), "--mesh", "2x4", *sizes]
        done = process(*words, "-o", tmp_path / seed, PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(contents(tmp_path / "1")) >= 5
