"""Recompute: activations that don't fit are computed again when the backward pass needs them.

Activation checkpointing (Chen et al., "Training deep nets with sublinear memory cost", 2016) as a
rewrite of a rank's program, op by op. It works on the partitioned program, where local sizes and
every collective are known: an op whose operands would have to be communicated again is as dear as
that. Copies are ops like others, in the backward phase, with `recompute` in their plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autopar.cost import Cluster, evaluate
from autopar.ir.activations import is_asked
from autopar.ir.errors import InvalidInputError
from autopar.ir.manifest import ReportEntry
from autopar.ir.program import Program
from autopar.ir.units import human_bytes
from autopar.partition.recompute.choice import Choice
from autopar.partition.recompute.copies import write_copies
from autopar.partition.recompute.repeat import PLAN
from autopar.partition.recompute.replay import replay
from autopar.partition.recompute.tape import tape_of

__all__ = ["DoesNotFit", "Recompute", "Recomputed", "recompute"]


class DoesNotFit(InvalidInputError):
    """A program needs more memory than there is, whatever is computed again.

    Attributes:
        least_bytes: What it needs at least.
    """

    def __init__(self, least_bytes: int, limit: int) -> None:
        self.least_bytes = least_bytes
        super().__init__(
            f"a device would hold {human_bytes(least_bytes)} even if it computed again what it can,"
            f" {human_bytes(least_bytes - limit)} more than the limit of {human_bytes(limit)};"
            " raise the limit, split parameters or the batch over more devices, or accumulate"
            " gradients over more microbatches"
        )


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A program whose backward pass computes some values again.

    Attributes:
        program: The program.
        added_seconds: What this adds to a step, in serialized seconds.
        peak_bytes: The most bytes that a rank holds at once; 0 if nobody asked.
    """

    program: Program
    added_seconds: float
    peak_bytes: int

    @property
    def remarks(self) -> tuple[ReportEntry, ...]:
        """What the user should know."""
        count = sum(PLAN in dict(op.plan) for op in self.program.main.ops)
        if not count:
            return ()
        detail = (
            f"computed again for the backward pass, in {self.added_seconds * 1e3:.4g} ms, so that a"
            f" device holds at most {human_bytes(self.peak_bytes)}"
        )
        return (ReportEntry("recompute", f"{count} ops", detail),)


@dataclass(frozen=True)
class Recompute:
    """Makes a partitioned training step fit into memory.

    Attributes:
        cluster: Predicts seconds.
        memory_bytes: What a rank may hold at once, parameters, state and batch included; None for
            any number.
    """

    name: ClassVar[str] = "recompute"
    cluster: Cluster
    memory_bytes: int | None = None

    def __call__(self, program: Program) -> Program:
        """Returns the program.

        Raises:
            DoesNotFit: If it needs more than the limit whatever is computed again.
        """
        return self.decide(program).program

    def decide(self, program: Program) -> Recomputed:
        """Returns the program, and what it costs to make it fit.

        Raises:
            DoesNotFit: If it needs more than the limit whatever is computed again.
        """
        if self.memory_bytes is None and not is_asked(program.main.ops):
            return Recomputed(program, 0.0, 0)
        return recompute(program, self.cluster, self.memory_bytes)


def recompute(program: Program, cluster: Cluster, memory_bytes: int | None) -> Recomputed:
    """Returns the fastest known program that holds no more than a limit and does what is wished.

    More memory never makes it slower, and less memory never makes it hold more.

    Args:
        program: A partitioned program.
        cluster: Predicts seconds.
        memory_bytes: The limit; None for none.

    Raises:
        DoesNotFit: If it needs more than the limit whatever is computed again.
    """
    tape = tape_of(program, cluster)
    choice = Choice(tape)
    point = choice.unconstrained if memory_bytes is None else choice.fastest(memory_bytes)
    if point is not None:
        if point is choice.unconstrained and not is_asked(program.main.ops):
            return Recomputed(program, 0.0, point.peak_bytes)
        steps = replay(tape, point.way, range(len(tape.ops)))
        found = program.with_main(write_copies(tape, steps))
        before, after = (evaluate(each, cluster).serialized_seconds for each in (program, found))
        return Recomputed(found, after - before, point.peak_bytes)
    assert memory_bytes is not None
    raise DoesNotFit(choice.smallest.peak_bytes, memory_bytes)
