"""A program for which there is a plan, or which is about to get one."""

from __future__ import annotations

from typing import NamedTuple

from autopar.completion.plan import Plan
from autopar.ir.program import Program
from autopar.planning.chunk import Chunks
from autopar.planning.lowering import Lowering
from autopar.planning.planner import Planner


class Planning(NamedTuple):
    """A program that is to be planned.

    Attributes:
        pinned: With its mesh, pins and stages.
        planner: Makes its plans.
        chunks: What is cut of it.
    """

    pinned: Program
    planner: Planner
    chunks: Chunks

    def planned(self, memory_bytes: int | None, plan: Plan | None = None) -> Planned:
        """Returns the program with its best plan within a limit of memory, or a known one.

        Raises:
            AnnotationError: If pins contradict one another, or the strategy doesn't fit.
            DoesNotFit: If no plan that is searched fits.
        """
        plan = plan or self.planner.best(memory_bytes)
        return Planned(self.pinned, plan, self.planner.lowering, self.chunks)


class Planned(NamedTuple):
    """A program that is planned.

    Attributes:
        pinned: With its mesh, pins and stages.
        plan: The plan.
        lowering: The passes from that to what ranks run.
        chunks: What is cut of the program.
    """

    pinned: Program
    plan: Plan
    lowering: Lowering
    chunks: Chunks
