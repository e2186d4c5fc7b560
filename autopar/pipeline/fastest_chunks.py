"""Fastest chunks: what is computed in parts, one after another, so that a step fits into memory.

What takes most of what a program holds at once is cut, into ever more parts, as long as that makes
it hold less. What is best for the largest value may stand in the way of cutting all values at once,
along their batch for example, so a second chain of cuts begins with what leaves least of all. Each
cut is a program of its own, which is planned like any other, and made to fit by what is computed
again. The fastest of all is taken.

No cut depends on the limit, which only says how many are tried: none that is slower than one that
fits without anything being computed again. A cut that makes a program faster takes its place. So
more memory is never slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from autopar.base.units import human_bytes, human_seconds
from autopar.completion.search.watch import Watch
from autopar.ir.builds.manifest import ReportEntry
from autopar.partition.recompute import DoesNotFit
from autopar.pipeline.cuts import Chain, Cut, Cutter
from autopar.pipeline.options import CompileOptions
from autopar.pipeline.planned import Planning
from autopar.planning.planner import Planner

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
    first, cutter = Cut(whole, planning(whole)), Cutter(planning)
    chains = Chain(cutter, watch), Chain(cutter, watch, begins_with_least=True)
    found = _fastest(_cuts(first, chains, memory_bytes), memory_bytes)
    return FastestChunks(
        found.options,
        found.planning,
        found.seconds - first.seconds,
        first.peak_bytes,
        found.peak_bytes,
    )


def _cuts(first: Cut, chains: Sequence[Chain], memory_bytes: int) -> list[Cut]:
    """Returns the programs that may be the fastest within a limit.

    Args:
        first: Nothing is cut of it.
        chains: Each cuts ever more of it.
        memory_bytes: The limit.
    """
    found, below = dict[Cut, None](), math.inf
    for chain in chains:
        cuts, below = _cuts_along(chain, first, memory_bytes, below)
        found |= dict.fromkeys(cuts)
    return [*found]


def _cuts_along(
    chain: Chain, first: Cut, memory_bytes: int, below: float
) -> tuple[list[Cut], float]:
    """Returns those of a chain, each slower than the one before.

    Args:
        chain: It cuts ever more.
        first: Nothing is cut of it.
        memory_bytes: The limit.
        below: What is as slow on one device isn't needed, as there is one that fits.

    Returns:
        The programs, and below what others count.
    """
    found, now = [first], first
    while True:
        if now.peak_bytes <= memory_bytes:
            below = min(below, now.alone_seconds)
        better = chain.next(now, below)
        if better is None:
            return found, below
        if better.seconds < now.seconds:
            if found[-1] is now:
                found.pop()
        elif now.peak_bytes <= memory_bytes:
            return found, below
        if not found or better.seconds >= found[-1].seconds:
            found.append(better)
        now = better


def _fastest(cuts: Sequence[Cut], memory_bytes: int) -> Cut:
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
