"""What tests of indices run in real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autopar.base.errors import AutoparError
from autopar.runtime.execute.session import Session
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer


def steps(processes: Processes, build: Path, right: Any, wrong: Any) -> tuple[list[str], float]:
    """Takes steps in which rank 1 alone has a wrong batch, the first one among them.

    Returns:
        What is said to each, and the loss of the right one behind them.
    """
    said = []
    with open_trainer(build, processes=processes, timeout=20.0, backend="gloo") as trainer:
        for _ in range(2):
            try:
                trainer.step(wrong if processes.rank == 1 else right)
            except AutoparError as error:
                said.append(str(error))
            loss = float(trainer.step(right))
        return said, loss


def requests(processes: Processes, build: Path, right: Any, wrong: Any) -> tuple[list[Any], str]:
    """Returns the outputs of a right request, as lists, and what is said to a wrong one."""
    with Session(build, processes=processes, timeout=20.0, backend="gloo") as session:
        outputs = session(right)
        try:
            return [each.tolist() for each in outputs.values()], str(session(wrong))
        except AutoparError as error:
            return [each.tolist() for each in outputs.values()], str(error)
