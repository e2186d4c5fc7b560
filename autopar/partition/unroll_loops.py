"""Unroll loops: behind partition, iterations are told apart.

Microbatches of a pipeline run in the order of a schedule, and each holds memory of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autopar.ir.memory.accumulating import with_products_added
from autopar.ir.program import Program
from autopar.ir.unroll import unrolled


@dataclass(frozen=True)
class UnrollLoops:
    """Replaces the loops of a partitioned program by their iterations.

    Attributes:
        but: The name of a loop that stays; "" if none does.
    """

    name: ClassVar[str] = "unroll"
    but: str = ""

    def __call__(self, program: Program) -> Program:
        """Returns the program without loops."""
        done = unrolled(program, self.but)
        return done.with_main(with_products_added(done.main))
