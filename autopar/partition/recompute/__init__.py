"""Recompute: activations that don't fit are computed again when the backward pass needs them.

Or they wait in the host's memory, where a cluster has a link to that and the transfers cost less.

Activation checkpointing (Chen et al., "Training deep nets with sublinear memory cost", 2016) as a
rewrite of a rank's program, op by op. It works on the partitioned program, where local sizes and
every collective are known: an op whose operands would have to be communicated again is as dear as
that. Copies are ops like others, in the backward phase, with `recompute` in their plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from autopar.base.collector import paused_collector
from autopar.cost import Cluster, evaluate, memory_timeline, peak_rank_timeline
from autopar.ir.activations import is_asked
from autopar.ir.parts import parts_of, rejoined
from autopar.ir.program import Program
from autopar.partition.recompute.beside import beside
from autopar.partition.recompute.choice import Choice
from autopar.partition.recompute.copies import write_copies
from autopar.partition.recompute.does_not_fit import DoesNotFit
from autopar.partition.recompute.looped import Looped, LoopRecomputer
from autopar.partition.recompute.plan import Learned
from autopar.partition.recompute.recomputed import Recomputed
from autopar.partition.recompute.replay import replay
from autopar.partition.recompute.shared import Shared, shared_ops
from autopar.partition.recompute.tape import tape_of

__all__ = [
    "DoesNotFit",
    "Learned",
    "LoopRecomputer",
    "Looped",
    "Recompute",
    "Recomputed",
    "Recomputer",
    "recompute",
]


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
        if self.memory_bytes is None and not is_asked(program):
            return Recomputed(program, 0.0, 0)
        return recompute(program, self.cluster, self.memory_bytes)


def recompute(program: Program, cluster: Cluster, memory_bytes: int | None) -> Recomputed:
    """Returns the fastest known program within a limit of memory that does what the user wants.

    More memory never makes it slower, and less memory never makes it hold more.

    Args:
        program: A partitioned program.
        cluster: Predicts seconds.
        memory_bytes: The limit; None for none.

    Raises:
        DoesNotFit: If it needs more than the limit whatever is computed again.
    """
    return Recomputer(program, cluster).within(memory_bytes)


class Recomputer:
    """Makes one program fit into several limits of memory.

    Ranks on different slices of the mesh compute different ops again, each within the limit.

    Args:
        program: A partitioned program.
        cluster: Predicts seconds.
        learned: What is known of other programs on the cluster; more is added.
    """

    def __init__(self, program: Program, cluster: Cluster, learned: Learned | None = None) -> None:
        self.program = program
        parts = parts_of(program)
        shared = shared_ops([each.main.ops for each in parts])
        both = zip(parts, shared, strict=True)
        made = [_Part(part, cluster, learned, each) for part, each in both]
        # Ranks that decide nothing do what others decide; whether they fit is seen then.
        self._parts = [each for each in made if each is made[0] or not each.follows]
        self._follows = len(self._parts) < len(made)

    @property
    @paused_collector()
    def least_bytes(self) -> int:
        """The least that the program can be made to hold."""
        return max(part.choice.smallest.peak_bytes for part in self._parts)

    @paused_collector()
    def added_seconds(self, memory_bytes: int, below: float = math.inf) -> float:
        """Returns the serialized seconds that the fastest known program within a limit adds.

        Args:
            memory_bytes: The limit.
            below: What matters: infinity may be returned if it adds more.

        Raises:
            DoesNotFit: If it needs more than the limit whatever is computed again.
        """
        points = [part.choice.fastest(memory_bytes, below) for part in self._parts]
        if below == math.inf and None in points:
            raise self._miss(memory_bytes)
        return sum(math.inf if point is None else point.added_seconds for point in points)

    @paused_collector()
    def within(self, memory_bytes: int | None) -> Recomputed:
        """Returns the fastest known program within a limit; see `recompute`."""
        limit, least = memory_bytes, self.least_bytes if memory_bytes is not None else 0
        while True:
            found = self._joined(limit)
            if found is None:
                assert memory_bytes is not None
                raise self._miss(memory_bytes, least)
            if memory_bytes is None or found.peak_bytes <= memory_bytes:
                return found
            least = found.peak_bytes
            limit = min(limit or 0, self._decided_bytes) - (least - memory_bytes)

    def _joined(self, memory_bytes: int | None) -> Recomputed | None:
        """Returns the program of all ranks if those that decide fit; None if they don't."""
        found = [part.within(memory_bytes) for part in self._parts]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        self._decided_bytes = max(each.peak_bytes for each in known)
        if len(known) == 1 and not self._follows:
            return known[0]
        parts, changed = ([each.program for each in side] for side in (self._parts, known))
        program = rejoined(self.program, parts, changed)
        all_parts = parts_of(program) if self._follows else ()
        return Recomputed(
            program,
            sum(each.added_seconds for each in known),
            max([self._decided_bytes, *map(_peak_bytes, all_parts)]),
            sum(each.transfer_seconds for each in known),
            max(each.host_bytes for each in known),
        )

    def _miss(self, limit: int, least: int | None = None) -> DoesNotFit:
        trains = any(op.phase == "backward" for op in self.program.main.ops)
        stored = max(part.stored_bytes for part in self._parts)
        least = self.least_bytes if least is None else least
        return DoesNotFit(least, limit, stored_bytes=stored, trains=trains)


def _peak_bytes(part: Program) -> int:
    return peak_rank_timeline(part).peak_bytes


class _Part:
    """Makes the program of the ranks on one slice fit."""

    def __init__(
        self, program: Program, cluster: Cluster, learned: Learned | None, shared: Shared
    ) -> None:
        self.program, self._cluster = program, cluster
        self.choice = Choice(tape_of(program, cluster, shared=shared), learned)

    @property
    def follows(self) -> bool:
        """Whether others decide whatever could be computed again here, or leave."""
        tape = self.choice.tape
        return tape.shared.follows and not any(tape.again) and not tape.offload_candidates

    @property
    def stored_bytes(self) -> int:
        """What is there all the time."""
        return sum(each.nbytes for each in self.choice.tape.memory.buffers if each.first < 0)

    def within(self, memory_bytes: int | None) -> Recomputed | None:
        """Returns the fastest known program within a limit; None if there is none."""
        tape = self.choice.tape
        unlimited = self.choice.unconstrained
        point = unlimited if memory_bytes is None else self.choice.fastest(memory_bytes)
        if point is None:
            return None
        if point is unlimited and not is_asked(self.program):
            return Recomputed(self.program, 0.0, point.peak_bytes)
        steps = replay(tape, point.way, range(len(tape.ops)))
        moved = beside(self.program.with_main(write_copies(tape, steps)), self._cluster)
        before, after = (evaluate(each, self._cluster) for each in (self.program, moved))
        return Recomputed(
            moved,
            after.serialized_seconds - before.serialized_seconds,
            point.peak_bytes,
            after.transfer_seconds,
            memory_timeline(moved).host_bytes,
        )
