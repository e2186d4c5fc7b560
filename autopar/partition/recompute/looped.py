"""Looped: microbatches that are calls in a loop compute alike again.

What is computed again is chosen for one microbatch of each kind of ranks (`once`), for fixed levels
of memory, whatever the limit is. What a rank then holds is exact: the program of calls is made, and
put in order, for level after level from about the limit on, and the first one that fits is taken. A
larger limit begins with a level that is higher, so it is never slower; and if what it takes held
less than what a smaller limit takes, it would fit there, too, and come first.

A level counts only if its program holds what it seems to, up to a known factor, so those above
needn't be made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autopar.base.collector import paused_collector
from autopar.cost import Cluster, evaluate, kinds_of_ranks, memory_timeline, peak_bytes_of
from autopar.ir.parts import parts_of
from autopar.ir.program import MICROBATCH, Program, called
from autopar.ir.unroll import first_iteration
from autopar.partition.recompute.choice import Choice
from autopar.partition.recompute.crowd import Crowd
from autopar.partition.recompute.does_not_fit import DoesNotFit
from autopar.partition.recompute.once import (
    Once,
    Written,
    functions_of,
    insiders,
    with_functions,
    written_out,
)
from autopar.partition.recompute.plan import Learned
from autopar.partition.recompute.recomputed import Recomputed
from autopar.partition.recompute.shared import shared_ops
from autopar.partition.recompute.way import Point

LEVELS = 128
"""Number of levels of memory, up to what a step takes if nothing is computed again."""

DOUBT = 1.002
"""Up to which factor a level that counts may seem to hold more than it does."""


@dataclass(frozen=True)
class Looped:
    """A partitioned program whose microbatches are calls in a loop.

    Attributes:
        program: The program.
        ranks: What a rank runs, in which microbatches are told apart, and in order.
        finish: Returns that of a program like this one.
    """

    program: Program
    ranks: Program
    finish: Callable[[Program], Program]

    @cached_property
    def parts(self) -> tuple[Program, ...]:
        """The different programs of ranks."""
        return parts_of(self.ranks)

    @cached_property
    def firsts(self) -> tuple[Program, ...]:
        """What ranks of each do for the first microbatch, with calls."""
        main = self.program.main
        return parts_of(self.program.with_main(first_iteration(main)))

    def once(self) -> Iterator[tuple[Program, Mapping[str, int]]]:
        """Yields what each kind of ranks does for one microbatch, and a rank of it."""
        for first in self.firsts:
            flat = first.with_main(written_out(first)[0])
            yield from ((flat, coords) for coords in kinds_of_ranks(flat))

    @cached_property
    def peaks(self) -> list[int]:
        """The most bytes that a rank of each holds."""
        kinds = kinds_of_ranks(self.ranks)
        return [peak_bytes_of(part, kinds) for part in self.parts]

    def peaks_of(self, ranks: Program) -> list[int]:
        """Returns the same of another program, whose parts are mostly the same."""
        known, kinds = zip(self.parts, self.peaks, strict=True), kinds_of_ranks(ranks)
        return [
            held if part == before else peak_bytes_of(part, kinds)
            for part, (before, held) in zip(parts_of(ranks), known, strict=True)
        ]

    @property
    def peak_bytes(self) -> int:
        """The most bytes that any rank holds."""
        return max(self.peaks)

    @cached_property
    def trip(self) -> int:
        """How many microbatches there are."""
        return max(dict(op.loops).get(MICROBATCH, 1) for op in self.program.main.ops)


@dataclass(frozen=True)
class _Joint:
    """What all ranks compute again.

    Attributes:
        points: By part.
        program: What a rank runs.
        peak_bytes: The most that any rank holds.
        seeming_bytes: The same, estimated.
    """

    points: Sequence[Point]
    program: Program
    peak_bytes: int
    seeming_bytes: int

    @property
    def counts(self) -> bool:
        """Whether it holds what it seems to, but for a little."""
        return self.seeming_bytes <= self.peak_bytes * DOUBT


class LoopRecomputer:
    """Makes one program fit into several limits of memory; as `Recomputer`.

    Args:
        looped: The program.
        cluster: Predicts seconds.
        learned: What is known of other programs on the cluster; more is added.
    """

    def __init__(self, looped: Looped, cluster: Cluster, learned: Learned | None = None) -> None:
        self._looped, self._cluster, self._learned = looped, cluster, learned or Learned()
        self._made: dict[tuple[Point, ...], _Joint] = {}

    @cached_property
    def _parts(self) -> list[Once]:
        """What ranks on each slice do for a microbatch."""
        inside, firsts = insiders(self._looped.program.main), self._looped.firsts
        found, decided, calls = list[Once](), set[str](), [called(once.main) for once in firsts]
        shared = shared_ops([written_out(once)[0].ops for once in firsts])
        for once, part, each in zip(firsts, self._looped.parts, shared, strict=True):
            # Of what ranks of several kinds call, those of the first decide.
            crowd = Crowd.of(part.main)
            mine = called(once.main)
            alone = {name for other in calls if mine & other for name in mine - other}
            fixed = frozenset(decided)
            found.append(Once(once, inside, fixed, alone, each, crowd, self._cluster))
            decided |= mine
        return found

    @cached_property
    def _choices(self) -> list[Choice]:
        return [Choice(each.tape, self._learned, each) for each in self._parts]

    @cached_property
    def _unconstrained(self) -> _Joint:
        return self._joint([each.unconstrained for each in self._choices])

    @cached_property
    def _smallest(self) -> _Joint:
        return self._joint([each.smallest for each in self._choices])

    @property
    @paused_collector()
    def least_bytes(self) -> int:
        """The least that the program can be made to hold."""
        return self._smallest.peak_bytes

    @paused_collector()
    def added_seconds(self, memory_bytes: int, below: float = math.inf) -> float:
        """Returns the serialized seconds that the fastest known program within a limit adds.

        Args:
            memory_bytes: The limit.
            below: What matters: infinity may be returned if it adds more.

        Raises:
            DoesNotFit: If it needs more than the limit whatever is computed again.
        """
        found = self._fastest(memory_bytes, below)
        if found is None and below == math.inf:
            raise self._miss(memory_bytes)
        return math.inf if found is None else self._seconds(found.points)

    @paused_collector()
    def within(self, memory_bytes: int | None) -> Recomputed:
        """Returns the fastest known program within a limit; see `recompute`.

        Raises:
            DoesNotFit: If it needs more than the limit whatever is computed again.
        """
        limit = math.inf if memory_bytes is None else memory_bytes
        found = self._fastest(limit)
        if found is None:
            assert memory_bytes is not None
            raise self._miss(memory_bytes)
        if found.program is self._looped.ranks:
            return Recomputed(found.program, 0.0, found.peak_bytes)
        programs = self._looped.ranks, found.program
        before, after = (evaluate(each, self._cluster) for each in programs)
        parts = parts_of(found.program) if after.transfer_seconds else ()
        return Recomputed(
            found.program,
            after.serialized_seconds - before.serialized_seconds,
            found.peak_bytes,
            after.transfer_seconds,
            max((memory_timeline(each).host_bytes for each in parts), default=0),
        )

    def _fastest(self, limit: float, below: float = math.inf) -> _Joint | None:
        """Returns what is computed again within a limit; None if nothing that is known fits."""
        if self._unconstrained.peak_bytes <= limit:
            return self._unconstrained
        for points in self._levels(limit * DOUBT):
            if self._seconds(points) >= below:
                return None
            if self._seeming(points) <= limit * DOUBT:
                joint = self._joint(points)
                if joint.peak_bytes <= limit and joint.counts:
                    return joint
        return self._smallest if self._smallest.peak_bytes <= limit else None

    def _levels(self, most: float) -> Iterator[list[Point]]:
        """Yields what is computed again at levels, from the one of so many bytes on down."""
        top = self._seeming(self._unconstrained.points)
        level = min(LEVELS, math.ceil(most * LEVELS / top))
        while level > 0:
            nbytes = top * level // LEVELS
            both = zip(self._choices, self._unseen_bytes, strict=True)
            points = [each.fastest(nbytes - unseen) for each, unseen in both]
            known = [point for point in points if point is not None]
            if len(known) < len(points):
                return
            yield known
            level = min(level, math.ceil(self._seeming(known) * LEVELS / top)) - 1

    @cached_property
    def _unseen_bytes(self) -> list[int]:
        """What ranks of each part hold at the peak that one microbatch and others don't tell."""
        both = zip(self._parts, self._looped.peaks, strict=True)
        return [held - once.peak_bytes for once, held in both]

    def _seeming(self, points: Sequence[Point]) -> int:
        both = zip(points, self._unseen_bytes, strict=True)
        return max(point.peak_bytes + unseen for point, unseen in both)

    def _seconds(self, points: Sequence[Point]) -> float:
        return sum(point.added_seconds for point in points) * self._looped.trip

    def _joint(self, points: Sequence[Point]) -> _Joint:
        key = tuple(points)
        if key not in self._made:
            written: dict[str, Written] = {}
            for once, point in zip(self._parts, points, strict=True):
                written.update(once.written(once.steps(point.way)))
            functions = functions_of(self._looped.program, written)
            program, held = self._looped.ranks, self._looped.peak_bytes
            if functions:
                program = self._looped.finish(with_functions(self._looped.program, functions))
                held = max(self._looped.peaks_of(program))
            self._made[key] = _Joint(points, program, held, self._seeming(points))
        return self._made[key]

    def _miss(self, limit: int) -> DoesNotFit:
        ops = self._looped.program.main.ops
        trains = any(op.phase == "backward" for op in ops)
        stored = max(memory_timeline(each).stored_bytes for each in self._looped.parts)
        return DoesNotFit(self.least_bytes, limit, stored_bytes=stored, trains=trains)
