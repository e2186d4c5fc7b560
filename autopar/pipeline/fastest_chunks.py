"""Fastest chunks: what is computed in parts, one after another, so that a step fits into memory.

What takes most of what a program holds at once is cut, into ever more parts, as long as that makes
it hold less. Each cut is a program of its own, which is planned like any other, and made to fit by
what is computed again. The fastest of all is taken.

No cut depends on the limit, which only says how many are tried: none that is slower than one that
fits without anything being computed again. A cut that makes a program faster takes its place. So
more memory is never slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from autopar.annotate import ChunkPin
from autopar.annotate.chunk_pins import BY_LIMIT
from autopar.base.errors import AnnotationError
from autopar.base.units import human_bytes, human_seconds
from autopar.completion.search.watch import Watch
from autopar.cost import evaluate, memory_timeline, peak_rank_timeline
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.program import MICROBATCH, Program
from autopar.partition import UnrollLoops
from autopar.partition.recompute import DoesNotFit
from autopar.pipeline.options import CompileOptions
from autopar.pipeline.planned import Planning
from autopar.planning.chunk.peak import Floor, apart, largest
from autopar.planning.planner import Planner

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

_NO_TIME = 1e-9
"""Seconds by which the rounding of sums may tell programs apart."""


@dataclass(frozen=True)
class FastestChunks:
    """What is computed in parts.

    Attributes:
        options: With what is cut.
        planning: The program, to be planned.
        seconds: Serialized seconds that it takes more than without cuts, both without a limit; less
            than 0 if cuts make it faster.
        before_bytes, after_bytes: The peaks without cuts and with them, nothing computed again.
    """

    options: CompileOptions
    planning: Planning
    seconds: float
    before_bytes: int
    after_bytes: int

    def remark(self) -> Iterator[ReportEntry]:
        """Yields what is to be said of the choice."""
        if not self.options.chunks:
            return
        peaks = f"{human_bytes(self.before_bytes)} -> {human_bytes(self.after_bytes)}"
        yield ReportEntry("search", "chunks", f"a device holds {peaks}, {self._in_time()}")

    def _in_time(self) -> str:
        """Returns how much more or less time it takes, in words."""
        if abs(self.seconds) < _NO_TIME:
            return "in as much time"
        return f"in {human_seconds(abs(self.seconds))} {'more' if self.seconds > 0 else 'less'}"


class _Cut:
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


def fastest_chunks(
    options: CompileOptions, planning: Callable[[CompileOptions], Planning], watch: Watch
) -> FastestChunks:
    """Returns what is to be cut so that a step takes the least time within a limit of memory.

    Args:
        options: What the user decided, among it the limit, and nothing of chunks.
        planning: Prepares a program for options.
        watch: Limits the search.

    Raises:
        DoesNotFit: If nothing fits into memory; of what needs least.
    """
    memory_bytes = options.memory_bytes
    assert memory_bytes is not None
    whole = replace(options, chunks=())
    first = _Cut(whole, planning(whole))
    cuts = _cuts(first, _Chain(planning, watch), memory_bytes)
    found = _fastest(cuts, memory_bytes)
    return FastestChunks(
        found.options,
        found.planning,
        found.seconds - first.seconds,
        first.peak_bytes,
        found.peak_bytes,
    )


def _cuts(first: _Cut, chain: _Chain, memory_bytes: int) -> list[_Cut]:
    """Returns the programs that may be the fastest within a limit, each slower than the one before.

    Args:
        first: Nothing is cut of it.
        chain: Cuts ever more.
        memory_bytes: The limit.
    """
    found, now = [first], first
    while True:
        fits = now.peak_bytes <= memory_bytes
        better = chain.next(now, only_faster=fits)
        if better is None:
            return found
        if better.seconds < now.seconds:
            if found[-1] is now:
                found.pop()
        elif fits:
            return found
        if not found or better.seconds >= found[-1].seconds:
            found.append(better)
        now = better


def _fastest(cuts: Sequence[_Cut], memory_bytes: int) -> _Cut:
    """Returns what is the fastest once it fits.

    Raises:
        DoesNotFit: If none does.
    """
    best, least, misses = None, math.inf, []
    # What holds least is made to fit in the least time, and the plans that are the fastest without
    # a limit are known, so others needn't be looked at for long.
    ways = (Planner.unlimited_seconds, Planner.seconds)
    for seconds_of, each in product(ways, reversed(cuts)):
        if each.seconds >= least:
            continue
        try:
            seconds = seconds_of(each.planning.planner, memory_bytes, least)
        except DoesNotFit as miss:
            misses.append(miss)
            continue
        if seconds < least:
            best, least = each, seconds
    if best is None:
        raise min(misses, key=lambda miss: miss.least_bytes)
    return best


class _Chain:
    """Programs of which ever more is cut.

    Args:
        planning: Prepares a program for options.
        watch: Limits the search.
    """

    def __init__(self, planning: Callable[[CompileOptions], Planning], watch: Watch) -> None:
        self._planning, self._watch = planning, watch
        self._done: set[tuple[str, ...]] = set()
        self._names: tuple[str, ...] = ()
        self._dim: int | None = None
        self._parts, self._left = 1, MOST_CUTS

    def next(self, now: _Cut, *, only_faster: bool = False) -> _Cut | None:
        """Returns a program that holds less than the one before; None if there is none.

        Args:
            now: The one before.
            only_faster: Whether it must take less time on one device, too.
        """
        if self._watch.is_late or not self._left:
            return None
        self._left -= 1
        parts = _TIMES * self._parts
        better = self._cut(now, self._names, parts, only_faster) if self._names else None
        if better is None:
            return self._other(now, only_faster)
        self._parts = parts
        return better

    def _other(self, now: _Cut, only_faster: bool) -> _Cut | None:
        """Returns a program of which something else is cut, too."""
        for alike in largest(now.planning.pinned.main, now.floor):
            if alike not in self._done:
                self._dim, names = self._best_dim(now, alike)
                better = self._cut(now, names, _TIMES, only_faster)
                if better is not None:
                    self._done.add(alike)
                    self._names, self._parts = names, _TIMES
                    return better
        return None

    def _best_dim(self, now: _Cut, alike: tuple[str, ...]) -> tuple[int | None, tuple[str, ...]]:
        """Returns the dimension by which most of a device's floor is gained; None for any.

        If others gain about as much, it is the one by which least time is lost. Of the values,
        those are left out that are in parts with the first one.
        """
        first, others = alike[:1], alike[1:]
        rank = len(now.planning.pinned.main.values[first[0]].shape)
        cuts = ((self._prepared(now, first, _TIMES, dim), dim) for dim in range(rank))
        found = [(cut, dim) for cut, dim in cuts if cut is not None]
        if not found:
            return None, alike
        least = min(cut.alone.nbytes for cut, _ in found)
        near = least + _NEAR * abs(now.alone.nbytes - least)
        cut, dim = min(
            (each for each in found if each[0].alone.nbytes <= near),
            key=lambda each: (each[0].alone_seconds, each[0].alone.nbytes),
        )
        return dim, (*first, *apart(cut.planning.pinned.main, others))

    def _cut(self, now: _Cut, names: Sequence[str], parts: int, only_faster: bool) -> _Cut | None:
        """Returns a program of which values are cut; None if it can't be, or holds hardly less."""
        cut = self._prepared(now, names, parts, self._dim) if parts <= MOST_PARTS else None
        if cut is None or (only_faster and cut.alone_seconds >= now.alone_seconds):
            return None
        try:
            return cut if cut.floor.nbytes < _LESS * now.floor.nbytes else None
        except AnnotationError:
            # What the user pins, or a preset wants, doesn't suit it.
            return None

    def _prepared(
        self, now: _Cut, names: Sequence[str], parts: int, dim: int | None
    ) -> _Cut | None:
        """Returns a program of which values are cut, to be planned; None if it can't be."""
        kept = [pin for pin in now.options.chunks or () if pin.pattern not in names]
        pins = [ChunkPin(name, parts, dim, BY_LIMIT) for name in names]
        options = replace(now.options, chunks=(*kept, *pins))
        try:
            return _Cut(options, self._planning(options))
        except AnnotationError:
            return None
