"""Chains of cuts: programs of which ever more is computed in parts, so that they hold less."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from autopar.annotate import ChunkPin
from autopar.annotate.chunk_pins import BY_LIMIT
from autopar.base.errors import AnnotationError
from autopar.completion.search.watch import Watch
from autopar.cost import evaluate, memory_timeline, peak_rank_timeline
from autopar.ir.program import MICROBATCH, Program
from autopar.partition import UnrollLoops
from autopar.pipeline.options import CompileOptions
from autopar.pipeline.planned import Planning
from autopar.planning.chunk.peak import Floor, apart, largest

MOST_PARTS = 256
"""Into how many parts anything is cut."""

MOST_CUTS = 24
"""How many programs are tried."""

_TIMES = 4
"""How many times as many parts are tried next."""

_LESS = 0.99
"""A cut that leaves more of the floor isn't worth it."""

_NEAR = 0.2
"""Part of what the best dimension gains that others may gain less, if they take less time."""


class Cut:
    """A program of which something is cut.

    Args:
        options: With what is cut.
        planning: The program, to be planned.
    """

    def __init__(self, options: CompileOptions, planning: Planning) -> None:
        self.options, self.planning = options, planning

    @cached_property
    def seconds(self) -> float:
        """What the fastest plan takes, if there is enough memory."""
        return self.planning.planner.unlimited.seconds

    @cached_property
    def peak_bytes(self) -> int:
        """What a rank holds at most by that plan."""
        return self.planning.planner.unlimited.peak_bytes

    @cached_property
    def floor(self) -> Floor:
        """What a rank holds at once, besides what waits for the backward pass."""
        unlimited = self.planning.planner.unlimited
        if unlimited.looped is None:
            return Floor.of(peak_rank_timeline(unlimited.ranks))
        # What is within functions isn't seen from outside.
        floors = (Floor.of(memory_timeline(*each)) for each in unlimited.looped.once())
        return max(floors, key=lambda floor: floor.nbytes)

    @cached_property
    def alone(self) -> Floor:
        """What one device holds at once, of microbatches one."""
        return Floor.of(memory_timeline(self._alone))

    @cached_property
    def alone_seconds(self) -> float:
        """What one device takes."""
        cluster = self.planning.planner.problem.cluster
        return evaluate(self._alone, cluster).serialized_seconds

    @cached_property
    def _alone(self) -> Program:
        return UnrollLoops(but=MICROBATCH)(self.planning.pinned)


class Chain:
    """Programs of which ever more is cut.

    Args:
        cutter: Cuts them.
        watch: Limits the search.
        begins_with_least: Whether it begins with the cut that leaves least of a program, not with
            one of the largest value.
    """

    def __init__(self, cutter: Cutter, watch: Watch, *, begins_with_least: bool = False) -> None:
        self._cutter, self._watch = cutter, watch
        self._by_least = begins_with_least
        self._done: set[tuple[str, ...]] = set()
        self._names: tuple[str, ...] = ()
        self._dim: int | None = None
        self._parts, self._left = 1, MOST_CUTS

    def next(self, now: Cut, below: float = math.inf) -> Cut | None:
        """Returns a program that holds less than the one before; None if there is none.

        Args:
            now: The one before.
            below: In how many seconds one device must run it.
        """
        if self._watch.is_late or not self._left:
            return None
        self._left -= 1
        parts = _TIMES * self._parts
        better = None
        if self._names:
            better = self._cutter.less(now, self._names, parts, self._dim, below)
        if better is None:
            return self._other(now, below)
        self._parts = parts
        return better

    def _other(self, now: Cut, below: float) -> Cut | None:
        """Returns a program of which something else is cut, too."""
        for way in self._ways(now):
            better = self._cutter.less(now, way.names, _TIMES, way.dim, below)
            if better is not None:
                self._done.add(way.alike)
                self._names, self._dim, self._parts = way.names, way.dim, _TIMES
                return better
        return None

    def _ways(self, now: Cut) -> Iterator[_Way]:
        """Yields what else may be cut, and how; the best first."""
        large = largest(now.planning.pinned.main, now.floor)
        others = [alike for alike in large if alike not in self._done]
        if self._by_least and not self._done:
            ways = [way for alike in others for way in self._cutter.ways(now, alike)]
            if ways:
                yield _best(ways, now)
            return
        for alike in others:
            ways = self._cutter.ways(now, alike)
            yield _best(ways, now) if ways else _Way(alike, alike, None, now)


class _Way(NamedTuple):
    """How values that are alike may be cut.

    Attributes:
        alike: The values.
        names: Those that aren't in parts with the first one.
        dim: Along which dimension; None for any.
        cut: The program of which the first one is cut.
    """

    alike: tuple[str, ...]
    names: tuple[str, ...]
    dim: int | None
    cut: Cut


def _best(ways: Sequence[_Way], now: Cut) -> _Way:
    """Returns that by which most of a device's floor is gained.

    If others gain about as much, it is the one by which least time is lost.
    """
    least = min(way.cut.alone.nbytes for way in ways)
    near = least + _NEAR * abs(now.alone.nbytes - least)
    return min(
        (way for way in ways if way.cut.alone.nbytes <= near),
        key=lambda way: (way.cut.alone_seconds, way.cut.alone.nbytes),
    )


class Cutter:
    """Cuts programs, each in each way once.

    Args:
        planning: Prepares a program for options.
    """

    def __init__(self, planning: Callable[[CompileOptions], Planning]) -> None:
        self._planning = planning
        self._made: dict[tuple[ChunkPin, ...], Cut | None] = {}

    def ways(self, now: Cut, alike: tuple[str, ...]) -> list[_Way]:
        """Returns along which dimensions values that are alike may be cut.

        Args:
            now: The program.
            alike: The values.
        """
        main = now.planning.pinned.main
        first, others = alike[:1], alike[1:]
        found = []
        for dim in range(len(main.values[first[0]].shape)):
            cut = self._prepared(now, first, _TIMES, dim)
            if cut is not None:
                names = (*first, *apart(cut.planning.pinned.main, others))
                found.append(_Way(alike, names, dim, cut))
        return found

    def less(
        self, now: Cut, names: Sequence[str], parts: int, dim: int | None, below: float
    ) -> Cut | None:
        """Returns a program of which values are cut; None if it can't be, or holds hardly less.

        Args:
            now: The program.
            names: The values.
            parts: Into how many parts.
            dim: Along which dimension; None for any.
            below: In how many seconds one device must run it.
        """
        cut = self._prepared(now, names, parts, dim) if parts <= MOST_PARTS else None
        if cut is None or cut.alone_seconds >= below:
            return None
        try:
            return cut if cut.floor.nbytes < _LESS * now.floor.nbytes else None
        except AnnotationError:
            # What the user pins, or a preset wants, doesn't suit it.
            return None

    def _prepared(self, now: Cut, names: Sequence[str], parts: int, dim: int | None) -> Cut | None:
        """Returns a program of which values are cut, to be planned; None if it can't be."""
        kept = [pin for pin in now.options.chunks or () if pin.pattern not in names]
        pins = (*kept, *(ChunkPin(name, parts, dim, BY_LIMIT) for name in names))
        if pins not in self._made:
            options = replace(now.options, chunks=pins)
            try:
                self._made[pins] = Cut(options, self._planning(options))
            except AnnotationError:
                self._made[pins] = None
        return self._made[pins]
