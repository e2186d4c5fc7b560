"""The plan: which blocks repeat what, so that a step is fast and never holds more than a limit.

Consecutive blocks form a segment that is repeated from what crosses its border. Its way is one of
those on the hull (`cut`). While a segment runs, the saved values of all segments before it lie in
memory, so the fastest plan is found by dynamic programming over the blocks and the bytes saved
before: exactly, but for the rounding of these bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.partition.recompute.blocks import Blocks, blocks_of
from autopar.partition.recompute.cut import Problem, problem_of, ways
from autopar.partition.recompute.profile import Known, Profile, Profiler, Span
from autopar.partition.recompute.tape import Tape
from autopar.partition.recompute.way import NOTHING, Way

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Numbers of blocks that form a segment."""

MOST_WAYS, LEAST_WAYS = 16, 4
"""Of single blocks and of long segments: the most ways to run them that are looked at."""

FEWEST = 2
"""How many of the ways that save least are tried with copies made anew."""

TABLES = 32
"""How many limits of what one microbatch holds are tried, where others hold something, too."""

UNITS = 2048
"""In how many steps the bytes saved by all blocks before are told apart."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A way to run consecutive blocks: from `first` up to, but without, `end`."""

    first: int
    end: int
    profile: Profile


@dataclass(frozen=True, slots=True)
class Plan:
    """What is computed again, and what leaves and comes back.

    Attributes:
        way: The forward ops and values.
        peak_bytes: The most bytes that are held at once, as the sum over segments has it.
        seconds: What this adds to a step, as the sum over segments has it.
    """

    way: Way
    peak_bytes: int
    seconds: float


class _Solved(NamedTuple):
    """The fastest segments within a limit.

    Attributes:
        limit: In bytes.
        seconds: What they take, by the units that they save.
        chosen: By block and units, the last segment.
    """

    limit: int
    seconds: NDArray[np.float64]
    chosen: NDArray[np.int32]


@dataclass(frozen=True)
class Chain:
    """The blocks of a microbatch.

    Attributes:
        count: Their number.
        segments: In order of their ends.
    """

    count: int
    segments: Sequence[Segment]

    @cached_property
    def saved(self) -> int:
        """The bytes that are saved if nothing is computed again."""
        single = (each for each in self.segments if each.end == each.first + 1)
        most: dict[int, int] = {}
        for each in single:
            most[each.first] = max(each.profile.saved, most.get(each.first, 0))
        return sum(most.values())

    @property
    def unit(self) -> int:
        """The bytes of a step in which saved bytes are told apart."""
        return max(1, -(-self.saved // UNITS))

    def fastest(self, limit: int) -> list[Segment] | None:
        """Returns the segments that take the least seconds within a limit; None if none do."""
        solved = self._solved(limit)
        place = int(solved.seconds.argmin())
        return self._followed(solved.chosen, place) if np.isfinite(solved.seconds[place]) else None

    def fastest_beside(self, limit: int, others: float) -> list[Segment] | None:
        """Returns the fastest segments within a limit if as many others hold what is saved, too.

        Args:
            limit: In bytes.
            others: How many.
        """
        best, found = np.inf, None
        for solved in self._tables:
            most = int((limit - solved.limit) / (others * self.unit))
            if most >= 0:
                place = int(solved.seconds[: most + 1].argmin())
                if solved.seconds[place] < best:
                    best, found = solved.seconds[place], (solved.chosen, place)
        return self._followed(*found) if found is not None else None

    @cached_property
    def _tables(self) -> list[_Solved]:
        """The fastest segments by what they save, at some limits of what the passes of one hold."""
        needed = [each.profile.needed for each in self.segments]
        low, high = min(needed), max(needed) + self.unit * UNITS
        limits = {low + (high - low) * at // TABLES for at in range(1, TABLES + 1)}
        solved = map(self._solved, sorted(limits))
        return [each for each in solved if np.isfinite(each.seconds).any()]

    def _solved(self, limit: int) -> _Solved:
        """Returns the fastest segments within a limit."""
        size = UNITS + self.count + 1
        seconds = np.full((self.count + 1, size), np.inf)
        seconds[0, 0] = 0.0
        chosen = np.full((self.count + 1, size), -1, dtype=np.int32)
        for number, segment in enumerate(self.segments):
            saved = round(segment.profile.saved / self.unit)
            # What leaves was among the bytes saved before.
            least = max(0, -saved)
            reach = min((limit - segment.profile.needed) // self.unit, size - 1 - max(saved, 0))
            if reach < least:
                continue
            total = seconds[segment.first, least : reach + 1] + segment.profile.seconds
            target = seconds[segment.end, least + saved : saved + reach + 1]
            better = total < target
            target[better] = total[better]
            chosen[segment.end, least + saved : saved + reach + 1][better] = number
        return _Solved(limit, seconds[self.count], chosen)

    def _followed(self, chosen: NDArray[np.int32], place: int) -> list[Segment]:
        segments: list[Segment] = []
        end = self.count
        while end:
            segment = self.segments[chosen[end, place]]
            segments.append(segment)
            place -= round(segment.profile.saved / self.unit)
            end = segment.first
        return segments[::-1]


@dataclass(frozen=True)
class Learned:
    """What is known of blocks, whichever programs on a cluster they are of.

    Attributes:
        ways: The ways to run them: by problem, the ops that are cheap, and the number of blocks.
        within: What they take.
    """

    ways: dict[tuple[Problem, frozenset[int], int], list[Way]] = field(default_factory=dict)
    within: Known = field(default_factory=dict)


class Planner:
    """Plans for limits.

    Args:
        tape: The tape.
        learned: What is known of other programs; more is added.
        others: How many other microbatches hold at a time what is saved, too.
        others_bytes: What they hold if nothing is computed again.
    """

    def __init__(
        self,
        tape: Tape,
        learned: Learned | None = None,
        others: float = 0.0,
        others_bytes: int = 0,
    ) -> None:
        self.tape = tape
        self._others, self._others_bytes = others, others_bytes
        self.learned = learned or Learned()

    @cached_property
    def chains(self) -> list[Chain]:
        """The blocks of each microbatch that has a backward pass."""
        chains = []
        for batch in sorted(set(self.tape.batches)):
            blocks = blocks_of(self.tape, batch)
            if blocks is not None:
                chains.append(Chain(len(blocks.forward), self._segments(blocks, batch)))
        return chains

    def plan(self, limit: int) -> Plan | None:
        """Returns the fastest plan within a limit, None if none is known."""
        way, peak, seconds = NOTHING, 0, 0.0
        for chain in self.chains:
            segments = self._fastest(chain, limit)
            if segments is None:
                return None
            saved, most = 0, 0
            for segment in segments:
                way = Way(*map(frozenset.union, way, segment.profile.way))
                most = max(most, saved + segment.profile.needed)
                saved += segment.profile.saved
                seconds += segment.profile.seconds
            peak = max(peak, most + self._held(chain, saved))
        return Plan(way, peak, seconds)

    def _fastest(self, chain: Chain, limit: int) -> list[Segment] | None:
        if not self._others:
            return chain.fastest(limit)
        return chain.fastest_beside(limit - self._held(chain, 0), self._others)

    def _held(self, chain: Chain, saved: int) -> int:
        """Returns what others hold if so much is saved."""
        return self._others_bytes - int(self._others * (chain.saved - saved))

    def _segments(self, blocks: Blocks, batch: int) -> list[Segment]:
        profiler = Profiler(self.tape, batch, self.learned.within)
        segments = []
        for end in range(1, len(blocks.forward) + 1):
            for length in LENGTHS:
                if length <= end:
                    span = Span(self.tape, blocks, end - length, end)
                    ways = self._ways_of(span, length)
                    if span.entering:
                        ways = [*ways, *map(span.with_entering, ways)]
                    profiles = profiler.profiles(span, ways)
                    segments += [Segment(end - length, end, each) for each in _unbeaten(profiles)]
        return segments

    def _ways_of(self, span: Span, length: int) -> Sequence[Way]:
        """Returns ways to run blocks. Saving everything is one for single blocks only.

        Those that save least are tried with copies of cheap ops made anew, too.
        """
        problem = problem_of(self.tape, span.forward, span.batch, span.backward)
        cheap = frozenset(place for place, op in enumerate(span.forward) if self.tape.cheap[op])
        key = problem, cheap, length
        if key not in self.learned.ways:
            mixes = ways(problem, max(MOST_WAYS // length, LEAST_WAYS))
            self.learned.ways[key] = [
                *(
                    Way(each.repeated, offloaded=each.offloaded)
                    for each in mixes
                    if each.repeated or length == 1
                ),
                *(
                    Way(each.repeated, each.repeated & cheap, each.offloaded)
                    for each in mixes[-FEWEST:]
                    if each.repeated
                ),
            ]
        return self.learned.ways[key]


def _unbeaten(profiles: Sequence[Profile]) -> list[Profile]:
    """Returns the profiles without those that others beat in everything."""
    kept: list[Profile] = []
    for each in sorted(profiles, key=lambda p: (p.seconds, p.saved, p.needed)):
        if not any(k.saved <= each.saved and k.needed <= each.needed for k in kept):
            kept.append(each)
    return kept
