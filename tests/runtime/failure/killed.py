"""Trains as one rank under torchrun, and kills itself at a moment that it is told.

    torchrun ... killed.py FOLDER STEPS EVERY

Of FOLDER/kills.json, a list, the attempt that this is has one: a phase, in which of its times,
the rank, and how many seconds after its begin. A further attempt has none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ATTEMPT = "AUTOPAR_TEST_ATTEMPT"
"""Says how many attempts other launchers have made."""


class Kill:
    """The end of this process, if it is the one.

    Args:
        folder: Where it is said which.
        attempt: The number of the attempt, from 0.
    """

    def __init__(self, folder: Path, attempt: int) -> None:
        self.note = folder / "killed"
        kills = json.loads((folder / "kills.json").read_text())
        self.phase, self.time, rank, self.seconds = [*kills, ["none", 0, -1, 0]][
            min(attempt, len(kills))
        ]
        self.mine = int(os.environ["RANK"]) == rank
        self.times = 0

    def begin(self, phase: str) -> None:
        """Notes that a phase begins."""
        if not self.mine or phase != self.phase:
            return
        self.times += 1
        if self.times == self.time:
            timer = threading.Timer(self.seconds, self.happen)
            timer.daemon = True
            timer.start()

    def happen(self) -> None:
        """Ends this process, and notes that first."""
        with self.note.open("a") as file:
            file.write(f"{self.phase} {self.time} on rank {os.environ['RANK']}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def within(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that is a phase."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.begin(phase)
            return function(*args, **kwargs)

        return wrapped


def attempt() -> int:
    """Returns the number of this attempt, from 0."""
    return int(os.environ[ATTEMPT]) + int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def main() -> None:
    """Trains to the end, and writes down each loss."""
    folder = Path(sys.argv[1])
    kill = Kill(folder, attempt())
    kill.begin("start")
    from autopar import elastic
    from autopar.runtime.checkpoint import checkpoint
    from autopar.runtime.execute import connection
    from autopar.runtime.training.trainer import Trainer
    from tests.runtime.checkpoint.targets import train_to
    from tests.runtime.training.steps import LAYOUTS, compiled_step

    elastic.build = kill.within("compile", elastic.build)
    connection.shake_hands = kill.within("handshake", connection.shake_hands)
    Trainer.resume = kill.within("load", Trainer.resume)  # type: ignore[method-assign]
    Trainer.step = kill.within("step", Trainer.step)  # type: ignore[method-assign]
    checkpoint.write_checkpoint = kill.within("save", checkpoint.write_checkpoint)
    log = folder / f"log.{os.environ['RANK']}"
    steps, every = map(int, sys.argv[2:4])
    with (
        elastic.load(
            lambda size: compiled_step(LAYOUTS[5]), folder / "builds", resume=folder / "s"
        ) as trainer,
        log.open("a") as file,
    ):
        train_to(steps, trainer, file, folder / "s", every, wait=False)


if __name__ == "__main__":
    main()
