"""`run`: inputs from files of every kind, outputs under their own names, real processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from autopar.cli.oracle import OnnxRuntime
from autopar.ir.builds.files import read_build
from tests.cli.command import INPUT, autopar


@pytest.fixture
def expected(here: Path) -> np.ndarray:
    """What ONNX Runtime computes."""
    judge = OnnxRuntime(here / "model.onnx", read_build("build").serial)
    return judge.run({"x": INPUT})["y"].numpy()


@pytest.mark.parametrize("given", ["x=x.npy", "x.npz", "x.safetensors"])
def test_inputs_from_files(here: Path, expected: np.ndarray, given: str) -> None:
    np.savez(here / "x.npz", x=INPUT)
    save_file({"x": torch.from_numpy(INPUT)}, here / "x.safetensors")
    done = autopar("run", "build", "--virtual", "--input", given, "--output", "out.npz")
    assert (done.exit_code, done.output) == (0, "y: float32[8, 16]\n")
    with np.load("out.npz") as outputs:
        assert list(outputs) == ["y"]
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=1e-5)


def test_outputs_as_safetensors(here: Path, expected: np.ndarray) -> None:
    words = ["--virtual", "--input", "x=x.npy", "--output", "out.safetensors"]
    assert autopar("run", "build", *words).exit_code == 0
    found = load_file("out.safetensors")["y"].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_outputs_replace_older_ones_when_complete(here: Path) -> None:
    (here / "out.npz").write_text("old")
    words = ["--virtual", "--random-inputs", "1", "--output", "out.npz"]
    assert autopar("run", "build", *words).exit_code == 0
    with np.load("out.npz") as outputs:
        assert outputs["y"].shape == (8, 16)
    assert [path.name for path in here.glob(".*")] == []


def test_the_same_seed_makes_up_the_same_inputs(here: Path) -> None:
    for seed, output in ((1, "a"), (1, "b"), (2, "c")):
        words = ["--virtual", "--random-inputs", seed, "--output", f"{output}.npz"]
        assert autopar("run", "build", *words).exit_code == 0
    a, b, c = (np.load(f"{name}.npz")["y"] for name in "abc")
    assert np.array_equal(a, b)
    assert not np.allclose(a, c)


def test_real_processes(here: Path, expected: np.ndarray) -> None:
    words = ["--mesh", "2", "--dims", "batch=8", "-o", "pair", "-q"]
    assert autopar("compile", "model.onnx", *words).exit_code == 0
    done = autopar("run", "pair", "--input", "x=x.npy", "--output", "out.npz")
    assert (done.exit_code, done.output) == (0, "y: float32[8, 16]\n")
    with np.load("out.npz") as outputs:
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=1e-5)
