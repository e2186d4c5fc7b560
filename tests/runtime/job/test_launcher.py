"""Builds run by torch's launcher: outputs, messages and exit codes as a user sees them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.ir.text import parse_program
from autopar.runtime.api import run
from autopar.runtime.files.scratch import PREFIX, scratch_folder
from autopar.runtime.job.torchrun import what_happened
from autopar.runtime.ports.ports import labelled_inputs
from tests.runtime.failure.faults import RANKS, left_processes, sum_build
from tests.runtime.failure.sabotage import VARIABLE
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
    found = run(folder, INPUTS)
    assert list(found) == ["last", "sums"]
    for label, tensor in run(folder, INPUTS, virtual=True).items():
        assert torch.equal(found[label], tensor)


def test_launch_raises_what_the_failing_rank_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        run(loop_build(tmp_path, FAILING), INPUTS)
    # Both ranks fail at the op; whichever was first names itself, or both.
    said = re.fullmatch(r"ranks? (0|1|0, 1) failed( alike)?: (.*)", str(caught.value))
    assert said is not None
    # What PyTorch itself says, which is more since 2.15.
    assert re.match(r"aten.mm.default -> %z \(m.py:9\): (mm: )?self must be a matrix", said[3])
    assert capfd.readouterr() == ("", "")


def test_launch_checks_inputs_before_it_starts_ranks(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="input 'c' is missing"):
        run(loop_build(tmp_path), {"x": INPUTS["x"]})


def test_inputs_may_be_given_in_their_order(tmp_path: Path) -> None:
    program = parse_program(LOOP_SERIAL)
    assert labelled_inputs(program, INPUTS) is INPUTS
    assert labelled_inputs(program, list(INPUTS.values())) == INPUTS
    folder = loop_build(tmp_path)
    with pytest.raises(InvalidInputError) as caught:
        run(folder, [INPUTS["x"]])
    assert str(caught.value) == (
        "1 input given by position, but the program has 2: 'x', 'c'; give them by label"
    )
    with pytest.raises(InvalidInputError) as caught:
        run(folder, INPUTS["x"])  # type: ignore[arg-type]
    assert str(caught.value) == (
        "inputs are a Tensor; give them by label, as {'x': ...}, or in a list in the order 'x', 'c'"
    )


def test_folders_of_killed_processes_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "autopar-mine").mkdir()
    with scratch_folder() as held:
        left, new = tmp_path / f"{PREFIX}1-host", tmp_path / f"{PREFIX}2-host"
        for folder in (left, new):
            folder.mkdir()
        for folder in (left, held):
            os.utime(folder, (0, 0))
        with scratch_folder() as other:
            assert other.stat().st_mode & 0o777 == 0o700
            found = sorted(each.name for each in tmp_path.iterdir())
            assert found == sorted(["autopar-mine", new.name, held.name, other.name])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["autopar-mine", new.name]


LAUNCHING = """
import sys, torch
from autopar.runtime.job.launcher import launch
launch(sys.argv[1], {"x": torch.ones(2)}, modules=["tests.runtime.failure.sabotage"])
"""


@pytest.mark.faults
def test_ranks_end_with_who_launched_them(tmp_path: Path) -> None:
    """Also when it is killed, in which case nothing is left of its folder by the next start."""
    folder, fault = sum_build(tmp_path), tmp_path / "fault"
    environment = {**os.environ, "TMPDIR": str(tmp_path), VARIABLE: f"2 step sleep {fault}"}
    words = [sys.executable, "-c", LAUNCHING, str(folder)]
    parent = subprocess.Popen(words, env=environment)
    deadline = time.monotonic() + 60
    while not fault.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert fault.exists()
    assert left_processes(folder) > RANKS
    parent.kill()
    parent.wait()
    while left_processes(folder) and time.monotonic() < deadline + 20:
        time.sleep(0.1)
    assert left_processes(folder) == 0


def test_a_killed_rank_is_found_in_the_launchers_log(tmp_path: Path) -> None:
    log = "failed (exitcode: -9) local_rank: 1 (pid: 12) of binary: python"
    assert what_happened(tmp_path, log) == "rank 1 was killed by signal 9"


def test_of_a_rank_that_ended_without_a_word_its_end_is_told(tmp_path: Path) -> None:
    message = "rank 0 failed: it ended without a word (killed?), and the store with it"
    (tmp_path / "rank1").write_text(message)
    log = """
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 13)
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : -11 (pid: 12)
"""
    assert what_happened(tmp_path, "") == message
    assert what_happened(tmp_path, log) == f"{message}; its exit code was -11"
    printed = tmp_path / "logs" / "job" / "attempt_0" / "0" / "stderr.log"
    printed.parent.mkdir(parents=True)
    printed.write_text("first\nFatal Python error: Segmentation fault\n")
    assert what_happened(tmp_path, log) == (
        f"{message}; its exit code was -11;"
        " the last line it printed was: Fatal Python error: Segmentation fault"
    )


def torchrun(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, f"--nproc-per-node={ranks}", "-m", "autopar.runtime"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [*command, *map(str, arguments)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)


def test_torchrun_reads_inputs_and_writes_outputs(tmp_path: Path) -> None:
    for name, tensor in INPUTS.items():
        np.save(tmp_path / f"{name}.npy", tensor.numpy())
    inputs = [w for n in INPUTS for w in ("--input", f"{n}={tmp_path / n}.npy")]
    folder = loop_build(tmp_path)
    done = torchrun(2, folder, *inputs, "--output", tmp_path / "out.npz")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as outputs:
        for label, tensor in run(folder, INPUTS, virtual=True).items():
            assert np.array_equal(outputs[label], tensor.numpy())


def test_a_mesh_larger_than_the_processes_started(tmp_path: Path) -> None:
    """Without torchrun there is one process: a message, no traceback."""
    words = [sys.executable, "-m", "autopar.runtime", str(loop_build(tmp_path))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert done.stderr == (
        "error: the build is for 2 ranks, but 1 process was started; start 2, as with"
        " torchrun --nproc-per-node 2, or compile for 1\n"
    )
