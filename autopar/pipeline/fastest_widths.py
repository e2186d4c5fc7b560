"""Fastest widths: at how many indices of the pipeline's axis each stage is, where nobody says so.

Of each number of stages the dynamic program of cuts proposes widths. The best of them are planned
and priced as any plan, beside stages at one index each, which are taken where nothing is faster.
From the fastest of these indices are moved from stage to stage as long as that is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autopar.base.units import human_seconds
from autopar.ir.builds.manifest import ReportEntry
from autopar.partition.pipeline.runs import Widths
from autopar.partition.recompute import DoesNotFit
from autopar.pipeline.fastest_schedule import FastestSchedule

MOST_PROPOSED = 4
"""How many of the widths that are proposed are planned."""

MOST_PLANNED = 10
"""How many are planned at all."""


@dataclass(frozen=True)
class FastestWidths:
    """The widths that are predicted to be the fastest.

    Attributes:
        way: Planned with them.
        seconds: What a step takes with each that were tried; infinity where it doesn't fit.
    """

    way: FastestSchedule
    seconds: Mapping[Widths, float]

    def remark(self) -> ReportEntry:
        """Returns what is to be said of the choice."""
        ordered = sorted(self.seconds, key=lambda widths: self.seconds[widths])
        words = (f"{_text(widths)} {_words(self.seconds[widths])}" for widths in ordered)
        detail = f"{_text(ordered[0])} is the fastest; {', '.join(words)}"
        return ReportEntry("search", "stages", detail)


def fastest_widths(
    size: int, proposed: Sequence[Widths], planned: Callable[[Widths], FastestSchedule]
) -> FastestWidths:
    """Returns the widths with which a step is predicted to take the least time.

    Args:
        size: Of the pipeline's axis.
        proposed: Widths, the most promising ones first.
        planned: Plans with some widths, with the fastest schedule or the one that the user says.

    Raises:
        DoesNotFit: If nothing fits into memory; of what needs least.
    """
    search = _Search(size, planned)
    alone = (1,) * size
    search.look_at((alone, *[each for each in proposed if each != alone][:MOST_PROPOSED]))
    while search.ways and search.look_at(neighbours(search.fastest)):
        pass
    if not search.ways:
        raise min(search.misses, key=lambda miss: miss.least_bytes)
    return FastestWidths(search.ways[search.fastest], search.seconds)


def neighbours(widths: Widths) -> Iterator[Widths]:
    """Yields widths with one index of a stage moved to the stage before or behind it."""
    for at, (one, other) in enumerate(pairwise(widths)):
        for more in (1, -1):
            if one + more > 0 and other - more > 0:
                yield (*widths[:at], one + more, other - more, *widths[at + 2 :])


class _Search:
    """What is known of widths; see `fastest_widths`."""

    def __init__(self, size: int, planned: Callable[[Widths], FastestSchedule]) -> None:
        self._alone, self._planned = (1,) * size, planned
        self.ways: dict[Widths, FastestSchedule] = {}
        self.seconds: dict[Widths, float] = {}
        self.misses: list[DoesNotFit] = []

    @property
    def fastest(self) -> Widths:
        """The fastest widths so far."""
        return min(self.ways, key=lambda widths: self.seconds[widths])

    def look_at(self, tried: Iterable[Widths]) -> bool:
        """Plans with widths that aren't known yet; returns whether some of them are the fastest."""
        before = self.fastest if self.ways else None
        for widths in tried:
            if widths in self.seconds or len(self.seconds) >= MOST_PLANNED:
                continue
            try:
                way = self._planned(() if widths == self._alone else widths)
                self.ways[widths], self.seconds[widths] = way, min(way.seconds.values())
            except DoesNotFit as miss:
                self.misses.append(miss)
                self.seconds[widths] = math.inf
        return bool(self.ways) and self.fastest != before


def _text(widths: Widths) -> str:
    return ",".join(map(str, widths))


def _words(seconds: float) -> str:
    return "doesn't fit" if math.isinf(seconds) else human_seconds(seconds)
