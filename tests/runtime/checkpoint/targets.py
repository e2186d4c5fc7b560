"""What tests of checkpoints run in real processes, which import it from here."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any, TextIO

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.runtime.api import load
from autopar.runtime.checkpoint import checkpoint
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from tests.runtime.training.steps import Batch, batches

_BATCHES = batches(64)


def batch_of(step: int) -> Batch:
    """Returns the batch of a step, which follows from its number."""
    return _BATCHES[step % len(_BATCHES)]


def run_steps(trainer: Trainer, count: int) -> list[str]:
    """Trains some steps and returns their losses, exactly."""
    return [trainer.step(batch_of(trainer.steps)).item().hex() for _ in range(count)]


def save_beside(processes: Processes, build: Path, folder: Path) -> dict[str, Any]:
    """Trains while a slow rank writes, then goes on from what was saved.

    Returns:
        The losses behind the call of each of both, and how many steps were done during the save.
    """
    _slow_writing(2.0 if processes.rank == 1 else 0.0)
    with open_trainer(build, timeout=60.0, processes=processes) as trainer:
        run_steps(trainer, 2)
        trainer.save_checkpoint(folder, wait=False)
        losses = run_steps(trainer, 4)
        meanwhile = 0
        while trainer._checkpoints.saving is not None:
            trainer.step(batch_of(trainer.steps))
            meanwhile += 1
        trainer.load_checkpoint(folder)
        return {"before": losses, "after": run_steps(trainer, 4), "meanwhile": meanwhile}


def leave_beside_a_save(processes: Processes, build: Path, folder: Path) -> tuple[str, float]:
    """Trains and saves; rank 1 closes its trainer while a save is under way, and lives on.

    Returns:
        What the rank learns, and after how many seconds.
    """
    trainer = open_trainer(build, timeout=30.0, processes=processes)
    run_steps(trainer, 3)
    trainer.save_checkpoint(folder, wait=False)
    began = time.monotonic()
    if processes.rank == 1:
        trainer.close()
        time.sleep(6.0)
        return "", 0.0
    try:
        return str(run_steps(trainer, 1)), 0.0
    except RuntimeFailure as failure:
        return str(failure), time.monotonic() - began


def _slow_writing(seconds: float) -> None:
    write = checkpoint.write_rectangles

    def slowly(*args: Any) -> None:
        time.sleep(seconds)
        write(*args)

    checkpoint.write_rectangles = slowly


def save_with_a_full_disk(
    processes: Processes, build: Path, folder: Path, wait: bool
) -> list[tuple[int, str]]:
    """Saves on a disk that rank 1 finds full; returns all errors and when they came."""
    write = checkpoint.write_rectangles
    errors = []

    def full_for_one(folder: Path, *args: Any) -> None:
        if folder.name.startswith(".1.") and processes.rank == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(folder, *args)

    checkpoint.write_rectangles = full_for_one
    with open_trainer(build, timeout=60.0, processes=processes) as trainer:
        for number in range(6):
            try:
                if number < 3:
                    trainer.save_checkpoint(folder / str(number), wait=wait)
                trainer.step(batch_of(trainer.steps))
            except InvalidInputError as error:
                errors.append((number, str(error)))
        trainer.save_checkpoint(folder / "last")
    return errors


def load_what_one_rank_finds_damaged(
    processes: Processes, build: Path, folder: Path
) -> tuple[int | None, list[str]]:
    """Resumes from a series whose newest checkpoint has damage that only one rank reads.

    Returns:
        The step that it goes on from, and losses after that.
    """
    with open_trainer(build, timeout=60.0, processes=processes) as trainer:
        return trainer.resume(folder), run_steps(trainer, 2)


def resume_from_a_file(processes: Processes, build: Path, file: Path) -> str:
    """Resumes from what is no folder, and trains on; returns the error."""
    with open_trainer(build, timeout=60.0, processes=processes) as trainer:
        try:
            trainer.resume(file)
        except InvalidInputError as error:
            run_steps(trainer, 1)
            return str(error)
    raise AssertionError("it was no error")


def train_on(
    processes: Processes, build: Path, folder: Path, log: Path, steps: int, wait: bool
) -> None:
    """Goes on from the newest checkpoint, saves after each step, and writes down each loss."""
    with (
        load(build, resume=folder, timeout=60.0, processes=processes) as trainer,
        log.open("a") as file,
    ):
        train_to(steps, trainer, file, folder, 1, wait)


def train_to(
    steps: int, trainer: Trainer, log: TextIO, folder: Path, every: int, wait: bool
) -> None:
    """Trains to a step, saves after every so many, and writes down each loss."""
    log.write(f"resumed {trainer.steps}\n")
    while trainer.steps < steps:
        (loss,) = run_steps(trainer, 1)
        log.write(f"{trainer.steps} {loss}\n")
        log.flush()
        if trainer.steps % every == 0:
            trainer.save_checkpoint(folder, keep=2, wait=wait)


def losses_of(log: Path) -> dict[int, set[str]]:
    """Returns all losses that were ever written down for each step."""
    found: dict[int, set[str]] = {}
    for line in log.read_text().splitlines():
        step, _, loss = line.partition(" ")
        if step.isdigit():
            found.setdefault(int(step), set()).add(loss)
    return found


def save_too(processes: Processes, build: Path, folder: Path, keep: int | None) -> str:
    """Saves once into a folder; returns why not, if it can't, and the loss of the next step."""
    with open_trainer(build, timeout=60.0, processes=processes) as trainer:
        trainer.step(batch_of(0))
        try:
            trainer.save_checkpoint(folder, keep=keep)
        except InvalidInputError as error:
            assert trainer.step(batch_of(1)).isfinite()
            return str(error)
    return ""
