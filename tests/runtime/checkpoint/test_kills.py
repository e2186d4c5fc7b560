"""Ranks that are killed at any moment: what is started again ends as if nothing had happened."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from autopar.runtime.job.processes import Processes
from tests.runtime.checkpoint.targets import losses_of, train_on
from tests.runtime.job.real import CONTEXT, _free_port
from tests.runtime.training.steps import LAYOUTS, training_build

RANKS, STEPS, KILLS = 2, 400, 20


def started(build: Path, folder: Path, log: Path, wait: bool) -> list[BaseProcess]:
    """Starts the ranks of a job."""
    CONTEXT.set_forkserver_preload(["torch", "tests.runtime.checkpoint.targets"])
    port = _free_port()
    job = []
    for rank in range(RANKS):
        processes = Processes(rank, RANKS, rank, RANKS, "127.0.0.1", port)
        args = (processes, build, folder, log.with_suffix(f".{rank}"), STEPS, wait)
        job.append(CONTEXT.Process(target=train_on, args=args))
        job[-1].start()
    return job


def ended(job: list[BaseProcess], seconds: float) -> bool:
    """Waits for all of a job, then kills what is left of it; returns whether nothing was."""
    deadline = time.monotonic() + seconds
    for process in job:
        process.join(max(deadline - time.monotonic(), 0))
    alive = [process for process in job if process.is_alive()]
    for process in alive:
        process.kill()
        process.join()
    return not alive


def await_moment(drawn: random.Random, job: list[BaseProcess], folder: Path, log: Path) -> str:
    """Returns at some moment: during the start, the load, steps, or in the middle of a save."""
    moment = drawn.choice(["start", "training", "saving"])
    if moment == "start":
        time.sleep(drawn.uniform(0, 1.5))
        return moment
    before = log.stat().st_size if log.exists() else 0
    await_that(job, lambda: log.exists() and log.stat().st_size > before)
    time.sleep(drawn.uniform(0, 0.5))
    if moment == "saving":
        await_that(job, lambda: any(folder.glob(".step-*.new-*")))
        time.sleep(drawn.uniform(0, 0.03))
    return moment


def await_that(job: list[BaseProcess], holds: Callable[[], bool]) -> None:
    """Waits until something holds, or a process has ended."""
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline and all(each.is_alive() for each in job):
        time.sleep(0.001)


@pytest.mark.faults
@pytest.mark.parametrize("wait", [True, False])
def test_killed_trainings_end_as_if_nothing_had_happened(tmp_path: Path, wait: bool) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[2])
    whole, log, folder = tmp_path / "whole", tmp_path / "log", tmp_path / "s"
    assert ended(started(build, tmp_path / "w", whole, wait), 300)
    expected = losses_of(whole.with_suffix(".0"))
    drawn = random.Random(int(wait))
    moments = []
    for _ in range(KILLS // 2):
        job = started(build, folder, log, wait)
        moments.append(await_moment(drawn, job, folder, log.with_suffix(".0")))
        for process in drawn.choice([job, job[:1], job[1:]]):
            process.kill()
        ended(job, 20)
    assert ended(started(build, folder, log, wait), 300), moments
    for rank in range(RANKS):
        assert losses_of(log.with_suffix(f".{rank}")) == expected, moments
    kept = [f"step-{step:08}" for step in (STEPS - 1, STEPS)]
    assert sorted(path.name for path in folder.iterdir()) == kept
