"""The small model and a build of it, in a folder that is the current one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import INPUT, compiled


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model.onnx, build/ for 2x4, and x.npy; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    compiled(folder)
    np.save(folder / "x.npy", INPUT)
    return folder


@pytest.fixture
def here(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, as the current one."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
