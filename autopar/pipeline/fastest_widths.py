"""Fastest widths: at how many indices of the pipeline's axis each stage is, where nobody says so.

Of each number of stages the dynamic program of cuts proposes widths. The best of them are planned
and priced as any plan, beside stages at one index each, which are taken where nothing is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autopar.base.units import human_seconds
from autopar.ir.builds.manifest import ReportEntry
from autopar.partition.pipeline.runs import Widths
from autopar.partition.recompute import DoesNotFit
from autopar.pipeline.fastest_schedule import FastestSchedule

MOST_PLANNED = 4
"""How many of the widths that are proposed are planned."""


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
    alone = (1,) * size
    tried = dict.fromkeys((alone, *[each for each in proposed if each != alone][:MOST_PLANNED]))
    ways: dict[Widths, FastestSchedule] = {}
    seconds: dict[Widths, float] = {}
    misses: list[DoesNotFit] = []
    for widths in tried:
        try:
            ways[widths] = planned(() if widths == alone else widths)
            seconds[widths] = min(ways[widths].seconds.values())
        except DoesNotFit as miss:
            misses.append(miss)
            seconds[widths] = math.inf
    if not ways:
        raise min(misses, key=lambda miss: miss.least_bytes)
    return FastestWidths(ways[min(ways, key=lambda widths: seconds[widths])], seconds)


def _text(widths: Widths) -> str:
    return ",".join(map(str, widths))


def _words(seconds: float) -> str:
    return "doesn't fit" if math.isinf(seconds) else human_seconds(seconds)
