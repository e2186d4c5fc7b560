"""What tests of elastic training run in real processes, which import it from here."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from autopar import elastic
from autopar.base.errors import InvalidInputError
from autopar.compiled import CompiledModel
from autopar.runtime.job.preparing import prepare_on_first
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer
from tests.runtime.training.steps import LAYOUTS, batches, compiled_step


def compiling(processes: Processes, folder: Path, how: str) -> int:
    """Trains a step on a build that takes longer to make than ranks wait for one another."""

    def compile(size: int) -> CompiledModel:
        if how != "slowly" or processes.rank:
            raise InvalidInputError("nothing is to be compiled here")
        time.sleep(4.0)
        return compiled_step(LAYOUTS[2])

    timeouts = {"timeout": 30.0, "start_timeout": 2.0}
    with elastic.load(
        compile, folder / "b", resume=folder / "s", processes=processes, **timeouts
    ) as trainer:
        trainer.step(batches(1)[0])
        trainer.save_checkpoint(folder / "s", keep=2)
        return trainer.steps


def preparing(processes: Processes, folder: Path, how: str) -> str:
    """Prepares something on rank 0, which goes wrong when the others are there."""
    (folder / f"come{processes.rank}").touch()

    def prepare() -> None:
        while len([*folder.glob("come*")]) < processes.size:
            time.sleep(0.05)
        time.sleep(0.5)
        if how == "refuses":
            raise InvalidInputError("the model is too large")
        if how == "fails":
            _ = 1 / 0
        if how == "ends":
            sys.exit(3)
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(8.0)

    seconds = 2.0 if how == "sleeps" else 60.0
    prepare_on_first(prepare, processes, seconds, start_timeout=60.0)
    return "prepared"


def stopping(processes: Processes, build: Path) -> list[bool]:
    """Trains until all ranks stop; rank 1 alone is asked to, by a signal within its fourth step."""
    found = []
    with open_trainer(build, timeout=60.0, processes=processes) as trainer:
        signal.signal(signal.SIGTERM, lambda *_: trainer.request_stop())
        while not trainer.stopping:
            if processes.rank == 1 and trainer.steps == 3:
                trainer.step(batches(1)[0])
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                trainer.step(batches(1)[0])
            found.append(trainer.stopping)
    return found
