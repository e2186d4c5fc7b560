"""Builds with ops of another library, which only the module that defines them can register."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autopar.ir.text import parse_program
from autopar.pipeline import CompileOptions, compile_program, write
from tests.cli.command import autopar, process

MODULE = """
import torch

@torch.library.custom_op("cli_test_library::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""

PROGRAM = """
program "test" serial

func main {
  input %x: f32[4, 3]
  %y: f32[4, 3] = cli_test_library.doubled.default(x=%x) loc("net.py", 7)
  return %y
}
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build for 2 ranks beside the module, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cli_test_module.py").write_text(MODULE)
    np.save(tmp_path / "x.npy", np.ones((4, 3), dtype=np.float32))
    options = CompileOptions.from_text(mesh="2", shards=["x=[d0,-1]"])
    write(compile_program(parse_program(PROGRAM), options), {}, tmp_path / "build")
    return tmp_path / "build"


def test_ranks_import_the_module_of_an_op(build: Path) -> None:
    words = ["run", "build", "--input", "x=x.npy", "--output", "out.npz"]
    done = process(*words, "--modules", "cli_test_module", PYTHONPATH=path_with("."))
    assert (done.returncode, done.stderr) == (0, "")
    with np.load("out.npz") as outputs:
        assert np.array_equal(outputs["y"], np.full((4, 3), 2.0))


def test_modules_are_imported_before_anything_runs(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = autopar("run", "build", "--input", "x=x.npy", "--virtual")
    assert missing.exit_code == 1
    assert "net.py:7: op cli_test_library.doubled.default isn't registered" in missing.stderr
    assert "with --modules MODULE on the command line" in missing.stderr
    absent = autopar("run", "build", "--virtual", "--modules", "no_such_module")
    assert absent.exit_code == 1
    assert absent.stderr.startswith("error: --modules no_such_module: ModuleNotFoundError: ")
    monkeypatch.syspath_prepend(build.parent)
    assert autopar("verify", "build", "--modules", "cli_test_module").exit_code == 0


def path_with(folder: str) -> str:
    """Returns a search path with a folder and this package's root."""
    return f"{Path(folder).resolve()}:{Path(__file__).parents[2]}"
