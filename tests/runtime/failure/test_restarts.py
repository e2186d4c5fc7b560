"""Ranks under torchrun that are killed, or stopped for more or fewer of them, and go on.

Whether torchrun starts them again (`--max-restarts`) or somebody who gives the same command, killed
at random moments of each phase they end with the losses of a training that nothing interrupted, bit
by bit.
"""

from __future__ import annotations

import json
import random
import re
import runpy
import subprocess
import time
from itertools import groupby
from pathlib import Path

import pytest

from tests.runtime.checkpoint.targets import losses_of
from tests.runtime.failure.killed import ATTEMPT
from tests.runtime.job.real import _free_port
from tests.runtime.job.torchrun import ROOT, start_torchrun

RANKS, STEPS, EVERY = 4, 60, 3
LONGEST = {"start": 2.0, "compile": 1.5, "handshake": 0.2, "load": 0.3, "step": 0.02, "save": 0.05}
"""Seconds after the begin of each phase: some of these moments are behind its end."""

Moment = tuple[str, int, int, float]
"""The phase, which time, the rank, and the seconds after its begin."""


def drawn_kills(seed: int) -> list[Moment]:
    """Returns a kill of each phase: that of compiling, then one behind the first checkpoints."""
    drawn = random.Random(seed)
    others = ["start", "handshake", "load", "save"]
    drawn.shuffle(others)
    return [drawn_moment(drawn, phase) for phase in ("compile", "step", *others)]


def drawn_moment(drawn: random.Random, phase: str) -> Moment:
    """Returns a random moment of a phase."""
    time = {"step": drawn.randint(EVERY + 1, 9), "save": drawn.randint(1, 3)}.get(phase, 1)
    # Only rank 0 compiles.
    rank = 0 if phase == "compile" else drawn.randrange(RANKS)
    return phase, time, rank, drawn.uniform(0, LONGEST[phase])


def run_attempts(folder: Path, kills: list[Moment], restarts: bool) -> list[int]:
    """Trains to the end, with some kills on the way; returns the exit codes of the launchers."""
    folder.mkdir()
    (folder / "kills.json").write_text(json.dumps(kills))
    codes = []
    for attempt in range(1 if restarts else len(kills) + 1):
        again = f"--max-restarts={len(kills) if restarts else 0}"
        words = ("--standalone", f"--nproc-per-node={RANKS}", again)
        script = (ROOT / "tests/runtime/failure/killed.py", folder, STEPS, EVERY)
        variables = {ATTEMPT: str(attempt)}
        job = start_torchrun(*words, *script, log=folder / "said", variables=variables)
        try:
            codes.append(job.wait(400))
        finally:
            job.terminate()
            job.wait(60)
    return codes


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, set[str]]:
    """The losses of a training that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "f"
    assert run_attempts(folder, [], restarts=True) == [0]
    return losses_of(folder / "log.0")


@pytest.mark.parametrize(
    ("seed", "restarts"),
    [
        pytest.param(0, True, marks=pytest.mark.faults),
        pytest.param(1, False, marks=pytest.mark.faults),
        pytest.param(2, True, marks=pytest.mark.slow),
        pytest.param(3, False, marks=pytest.mark.slow),
    ],
)
def test_killed_ranks_end_as_if_nothing_had_happened(
    tmp_path: Path, expected: dict[int, set[str]], seed: int, restarts: bool
) -> None:
    kills = drawn_kills(seed)
    codes = run_attempts(tmp_path / "f", kills, restarts)
    said = (tmp_path / "f/said").read_text()
    assert codes == ([0] if restarts else [1] * len(kills) + [0]), said
    done = (tmp_path / "f/killed").read_text().splitlines()
    assert done == [f"{phase} {time} on rank {rank}" for phase, time, rank, _ in kills], said
    assert sorted(expected) == list(range(1, STEPS + 1))
    for rank in range(RANKS):
        assert losses_of(tmp_path / f"f/log.{rank}") == expected, kills


class Hosts:
    """Two hosts of two processes, as launchers of this host, that run the example.

    Args:
        folder: Where builds, checkpoints, and what is printed go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "said"
        self.log.touch()
        self.port = _free_port()
        self.jobs: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the launcher of a host."""
        words = ["--nnodes=1:2", "--nproc-per-node=2", "--max-restarts=9", "--rdzv-id=job"]
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}"]
        words += ["--rdzv-conf=last_call_timeout=10"]
        script = [ROOT / "examples/train_elastic.py", "--steps", 2000, "--pause", 0.1]
        script += ["--builds", self.folder / "b", "--checkpoints", self.folder / "s"]
        self.jobs.append(start_torchrun(*words, *script, log=self.log))
        return self.jobs[-1]

    def steps(self) -> list[tuple[int, str, int]]:
        """Returns what was printed so far: a step, its loss, and on how many processes."""
        found = re.findall(
            r"^step +(\d+)  loss (\S+)  on (\d)$", self.log.read_text(), re.MULTILINE
        )
        return [(int(step), loss, int(size)) for step, loss, size in found]

    def run_on(self, size: int, count: int) -> None:
        """Waits until some more steps were done on a number of processes."""
        done, deadline = len(self.steps()), time.monotonic() + 300
        while [each[2] for each in self.steps()[done:]].count(size) < count:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends all launchers, as a scheduler does."""
        for job in self.jobs:
            job.terminate()
        for job in self.jobs:
            job.wait(60)


@pytest.mark.faults
def test_no_step_is_lost_where_a_host_goes_and_comes_back(tmp_path: Path) -> None:
    """4 processes, then 2, then 4: each step is done once, with the losses of one device."""
    hosts = Hosts(tmp_path)
    try:
        hosts.start()
        second = hosts.start()
        hosts.run_on(4, 6)
        second.terminate()
        hosts.run_on(2, 6)
        hosts.start()
        hosts.run_on(4, 6)
    finally:
        hosts.stop()
    steps = hosts.steps()
    assert [step for step, _, _ in steps] == list(range(1, len(steps) + 1)), hosts.log.read_text()
    assert [size for size, _ in groupby(size for _, _, size in steps)] == [4, 2, 4]
    losses = [float(loss) for _, loss, _ in steps]
    assert losses == pytest.approx(losses_of_one_device(len(steps)), rel=1e-4)


def losses_of_one_device(count: int) -> list[float]:
    """Returns the losses of the plain script's training."""
    found = runpy.run_path(str(ROOT / "examples/train_gpt.py"))
    model = found["GPT"]()
    optimizer = found["adamw"](model)
    losses = []
    for step in range(count):
        ids, target = found["batch"](step)
        loss = found["criterion"](model(ids), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
