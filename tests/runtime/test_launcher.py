"""Builds run by torch's launcher: outputs, messages and exit codes as a user sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from autopar.ir.errors import InvalidInputError, RuntimeFailure
from autopar.runtime.api import launch, run_virtual
from autopar.runtime.launcher import _what_happened
from tests.runtime.programs import LOOP, LOOP_SERIAL, build, deploy

INPUTS = {"x": torch.arange(12.0).reshape(3, 4), "c": torch.ones(4)}

FAILING = LOOP.replace(
    "aten.relu.default(self=%y)", 'aten.mm.default(self=%y, mat2=%y) loc("m.py", 9)'
)


def loop_build(folder: Path, text: str = LOOP) -> Path:
    deployment = deploy({"tp": 2}, text, tp=["tp"])
    return build(folder / "build", deployment, {"scale": torch.ones(4)}, LOOP_SERIAL)


def test_launch_returns_global_outputs(tmp_path: Path) -> None:
    folder = loop_build(tmp_path)
    found = launch(folder, INPUTS)
    assert list(found) == ["last", "sums"]
    for label, tensor in run_virtual(folder, INPUTS).items():
        assert torch.equal(found[label], tensor)


def test_launch_raises_what_the_failing_rank_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        launch(loop_build(tmp_path, FAILING), INPUTS)
    # Both ranks fail at the op; whichever was first names itself.
    assert str(caught.value)[6:] == (
        " failed: aten.mm.default -> %z (m.py:9): self must be a matrix"
    )
    assert capfd.readouterr() == ("", "")


def test_launch_checks_inputs_before_it_starts_ranks(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="input 'c' is missing"):
        launch(loop_build(tmp_path), {"x": INPUTS["x"]})


def test_a_killed_rank_is_found_in_the_launchers_log(tmp_path: Path) -> None:
    log = "failed (exitcode: -9) local_rank: 1 (pid: 12) of binary: python"
    assert _what_happened(tmp_path, log) == "rank 1 was killed by signal 9"


def torchrun(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, f"--nproc-per-node={ranks}", "-m", "autopar.runtime"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [*command, *map(str, arguments)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


def test_torchrun_reads_inputs_and_writes_outputs(tmp_path: Path) -> None:
    for name, tensor in INPUTS.items():
        np.save(tmp_path / f"{name}.npy", tensor.numpy())
    inputs = [w for n in INPUTS for w in ("--input", f"{n}={tmp_path / n}.npy")]
    folder = loop_build(tmp_path)
    done = torchrun(2, folder, *inputs, "--output", tmp_path / "out.npz")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as outputs:
        for label, tensor in run_virtual(folder, INPUTS).items():
            assert np.array_equal(outputs[label], tensor.numpy())


def test_a_mesh_larger_than_the_processes_started(tmp_path: Path) -> None:
    """Without torchrun there is one process: a message, no traceback."""
    words = [sys.executable, "-m", "autopar.runtime", str(loop_build(tmp_path))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        "error: the build is for 2 ranks, but 1 process was started; start 2, as with"
        " torchrun --nproc-per-node 2, or compile for 1\n"
    )
