"""The plan: which blocks repeat what, so that a step is fast and never holds more than a limit.

Consecutive blocks form a segment that is repeated from what crosses its border. Its way is one of
those on the hull (`cut`). While a segment runs, the saved values of all segments before it lie in
memory, so the fastest plan is found by dynamic programming over the blocks and the bytes saved
before: exactly, but for the rounding of these bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopar.partition.recompute.blocks import Blocks, blocks_of
from autopar.partition.recompute.cut import Problem, Way, problem_of, ways
from autopar.partition.recompute.profile import Profile, Surroundings
from autopar.partition.recompute.tape import Tape

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of blocks that form a segment."""

UNITS = 1024
"""Into how many units of bytes a limit is divided."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A way to run consecutive blocks: from `first` up to, but without, `end`."""

    first: int
    end: int
    profile: Profile


class Planner:
    """Plans for limits.

    Args:
        tape: The tape.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._ways: dict[Problem, list[Way]] = {}

    @cached_property
    def segments(self) -> list[tuple[int, list[Segment]]]:
        """The number of blocks of each microbatch, and their segments by their ends."""
        found = []
        for batch in sorted(set(self.tape.batches)):
            blocks = blocks_of(self.tape, batch)
            if blocks is not None:
                found.append((len(blocks.forward), self._segments(blocks, batch)))
        return found

    def plan(self, limit: int) -> Way | None:
        """Returns the ops to repeat so that a limit holds; None if none are known to do."""
        found: set[int] = set()
        for count, segments in self.segments:
            chosen = _fastest(count, segments, limit)
            if chosen is None:
                return None
            found.update(*(each.profile.repeated for each in chosen))
        return frozenset(found)

    def _segments(self, blocks: Blocks, batch: int) -> list[Segment]:
        around = Surroundings(self.tape, batch)
        found = []
        for end in range(1, len(blocks.forward) + 1):
            for length in LENGTHS:
                if length <= end:
                    found += self._of(blocks, end - length, end, around)
        return found

    def _of(self, blocks: Blocks, first: int, end: int, around: Surroundings) -> list[Segment]:
        ops = [at for part in blocks.forward[first:end] for at in part]
        problem = problem_of(self.tape, ops, blocks.batch)
        if problem not in self._ways:
            self._ways[problem] = ways(problem)
        profiles = [around.profile(blocks, first, end - 1, way) for way in self._ways[problem]]
        return [Segment(first, end, profile) for profile in profiles]


def _fastest(count: int, segments: Sequence[Segment], limit: int) -> list[Segment] | None:
    """Returns the segments that take the least seconds within a limit; None if there are none.

    Args:
        count: The number of blocks.
        segments: In order of their ends.
        limit: Bytes.
    """
    unit = max(1, -(-limit // UNITS))
    seconds = np.full((count + 1, UNITS + 1), np.inf)
    seconds[0, 0] = 0.0
    chosen = np.full((count + 1, UNITS + 1), -1, dtype=np.int32)
    for number, segment in enumerate(segments):
        room = (limit - segment.profile.needed) // unit
        saved = round(segment.profile.saved / unit)
        reach = min(room, UNITS - saved)
        if reach < 0:
            continue
        total = seconds[segment.first, : reach + 1] + segment.profile.seconds
        target = seconds[segment.end, saved : saved + reach + 1]
        better = total < target
        target[better] = total[better]
        chosen[segment.end, saved : saved + reach + 1][better] = number
    place = int(seconds[count].argmin())
    if not np.isfinite(seconds[count, place]):
        return None
    found: list[Segment] = []
    end = count
    while end:
        segment = segments[chosen[end, place]]
        found.append(segment)
        place -= round(segment.profile.saved / unit)
        end = segment.first
    return found
