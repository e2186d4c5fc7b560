"""Recompute: activations that don't fit are computed again when the backward pass needs them.

Or they wait in the host's memory, where a cluster has a link to that and the transfers cost less.

Activation checkpointing (Chen et al., "Training deep nets with sublinear memory cost", 2016) as a
rewrite of a rank's program, op by op. It works on the partitioned program, where local sizes and
every collective are known: an op whose operands would have to be communicated again is as dear as
that. Copies are ops like others, in the backward phase, with `recompute` in their plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from autopar.base.collector import paused_collector
from autopar.cost import Cluster, evaluate, memory_timeline
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
from autopar.partition.recompute.way import Point

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

    Ranks on different slices of the mesh compute different ops again, each within the limit. Of
    ops that ranks of several kinds run, the first of these decides.

    Args:
        program: A partitioned program.
        cluster: Predicts seconds.
        learned: What is known of other programs on the cluster; more is added.
    """

    def __init__(self, program: Program, cluster: Cluster, learned: Learned | None = None) -> None:
        self.program, self._cluster, self._learned = program, cluster, learned
        self._programs = parts_of(program)
        self._shared = shared_ops([each.main.ops for each in self._programs])
        self._known: dict[tuple[int, Points], _Part] = {}

    @property
    @paused_collector()
    def least_bytes(self) -> int:
        """The least that the program can be made to hold."""
        return max(point.peak_bytes for point in self._smallest)

    @cached_property
    def _smallest(self) -> Points:
        found = self._points(lambda choice: choice.smallest)
        assert found is not None
        return found

    @paused_collector()
    def added_seconds(self, memory_bytes: int, below: float = math.inf) -> float:
        """Returns the serialized seconds that the fastest known program within a limit adds.

        Args:
            memory_bytes: The limit.
            below: What matters: infinity may be returned if it adds more.

        Raises:
            DoesNotFit: If it needs more than the limit whatever is computed again.
        """
        points = self._fastest(memory_bytes, below)
        if points is None and below == math.inf:
            raise self._miss(memory_bytes)
        return math.inf if points is None else sum(point.added_seconds for point in points)

    @paused_collector()
    def within(self, memory_bytes: int | None) -> Recomputed:
        """Returns the fastest known program within a limit; see `recompute`.

        Raises:
            DoesNotFit: If it needs more than the limit whatever is computed again.
        """
        if memory_bytes is None:
            points = self._points(lambda choice: choice.unconstrained)
        else:
            points = self._fastest(memory_bytes)
        if points is None:
            assert memory_bytes is not None
            raise self._miss(memory_bytes)
        known = [self._part(number, points).changed(point) for number, point in enumerate(points)]
        if len(known) == 1:
            return known[0]
        return Recomputed(
            self._with(points),
            sum(each.added_seconds for each in known),
            max(each.peak_bytes for each in known),
            sum(each.transfer_seconds for each in known),
            max(each.host_bytes for each in known),
        )

    def _fastest(self, limit: int, below: float = math.inf) -> Points | None:
        """Returns the fastest of each part within a limit; None if there is none."""
        points = self._points(lambda choice: choice.fastest(limit, below))
        if points is None and self._follows and self.least_bytes <= limit:
            # What was the fastest for some ranks leaves too little room to others.
            return self._smallest
        return points

    @property
    def _follows(self) -> bool:
        """Whether ranks of any kind run what others decide about."""
        return any(each.follows for each in self._shared)

    def _points(self, choose: Callable[[Choice], Point | None]) -> Points | None:
        """Returns what is chosen for each part, knowing those before; None if one has nothing."""
        found: Points = ()
        for number in range(len(self._programs)):
            point = choose(self._part(number, found).choice)
            if point is None:
                return None
            found = (*found, point)
        return found

    def _part(self, number: int, points: Points) -> _Part:
        """Returns a part where those before do this, if it has ops of theirs."""
        shared = self._shared[number]
        key = number, (points[:number] if shared.follows else ())
        if key not in self._known:
            program = self._programs[number]
            if shared.follows:
                program = parts_of(self._with(points[:number]))[number]
            self._known[key] = _Part(program, self._cluster, self._learned, shared)
        return self._known[key]

    def _with(self, points: Points) -> Program:
        """Returns the program if its first parts do this."""
        parts = [self._part(number, points) for number in range(len(points))]
        before = [part.program for part in parts]
        after = [part.changed(point).program for part, point in zip(parts, points, strict=True)]
        if not self._follows:
            return rejoined(self.program, before, after)
        program = self.program
        for one, other in zip(before, after, strict=True):
            program = rejoined(program, [one], [other])
        return program

    def _miss(self, limit: int) -> DoesNotFit:
        trains = any(op.phase == "backward" for op in self.program.main.ops)
        parts = (self._part(number, self._smallest) for number in range(len(self._programs)))
        stored = max(part.stored_bytes for part in parts)
        return DoesNotFit(self.least_bytes, limit, stored_bytes=stored, trains=trains)


Points = tuple[Point, ...]
"""What is chosen for each part."""


class _Part:
    """Makes the program of the ranks on one slice fit.

    Args:
        program: The program.
        cluster: Predicts seconds.
        learned: What is known of other programs on the cluster; more is added.
        shared: What ranks of other kinds decide, or nobody.
    """

    def __init__(
        self, program: Program, cluster: Cluster, learned: Learned | None, shared: Shared
    ) -> None:
        self.program, self._cluster = program, cluster
        self.choice = Choice(tape_of(program, cluster, shared=shared), learned)
        self._changed: dict[Point, Recomputed] = {}

    @property
    def stored_bytes(self) -> int:
        """What is there all the time."""
        return sum(each.nbytes for each in self.choice.tape.memory.buffers if each.first < 0)

    def changed(self, point: Point) -> Recomputed:
        """Returns the program that does what was chosen."""
        if point not in self._changed:
            self._changed[point] = self._written(point)
        return self._changed[point]

    def _written(self, point: Point) -> Recomputed:
        tape = self.choice.tape
        if point is self.choice.unconstrained and not is_asked(self.program):
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
