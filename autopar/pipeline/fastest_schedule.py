"""Fastest schedule: which order of a pipeline's parts takes least, within a limit of memory.

Schedules that put the stages onto the same processes share a plan, and differ in the order of ops
only. Each is priced with what it must compute again to stay within the limit, so a larger limit
never makes a step slower.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.base.units import human_seconds
from autopar.ir.builds.manifest import ReportEntry
from autopar.partition.pipeline.schedules import SCHEDULES
from autopar.partition.recompute import DoesNotFit
from autopar.pipeline.options import CompileOptions
from autopar.pipeline.planned import Planned
from autopar.planning.fit import Fitter
from autopar.planning.price import price


@dataclass(frozen=True)
class FastestSchedule:
    """The schedule that is predicted to be the fastest.

    Attributes:
        options: With that schedule.
        planned: The program, planned for it.
        seconds: What a step takes by each schedule that was tried; infinity where it doesn't fit.
    """

    options: CompileOptions
    planned: Planned
    seconds: Mapping[str, float]

    def remark(self) -> ReportEntry:
        """Returns what is to be said of the choice."""
        ordered = sorted(self.seconds, key=lambda name: self.seconds[name])
        words = (f"{name} {_words(self.seconds[name])}" for name in ordered)
        return ReportEntry("search", "schedule", f"{ordered[0]} is the fastest; {', '.join(words)}")


def only_schedule(options: CompileOptions, known: Planned) -> FastestSchedule:
    """Returns a plan by the schedule that the user said, with what a step takes.

    Raises:
        DoesNotFit: If it doesn't fit into memory.
    """
    seconds: dict[str, float] = {}
    way = FastestSchedule(options, known, seconds)
    seconds[options.schedule] = _seconds(way)
    return way


def fastest_schedule(
    options: CompileOptions, planned: Callable[[CompileOptions], Planned]
) -> FastestSchedule:
    """Returns the schedule with which a step is predicted to take the least time.

    Args:
        options: What the user decided.
        planned: Plans for options with a certain schedule.

    Raises:
        DoesNotFit: If none fits into memory; of the one that needs least.
    """
    ways: list[FastestSchedule] = []
    seconds: dict[str, float] = {}
    misses: list[DoesNotFit] = []
    for names in _alike():
        try:
            known = planned(replace(options, schedule=names[0]))
        except DoesNotFit as miss:
            misses.append(miss)
            seconds.update(dict.fromkeys(names, math.inf))
            continue
        for name in names:
            mine = known._replace(lowering=replace(known.lowering, schedule=name))
            way = FastestSchedule(replace(options, schedule=name), mine, seconds)
            try:
                seconds[name] = _seconds(way)
                ways.append(way)
            except DoesNotFit as miss:
                misses.append(miss)
                seconds[name] = math.inf
    if not ways:
        raise min(misses, key=lambda miss: miss.least_bytes)
    return min(ways, key=lambda way: seconds[way.options.schedule])


def _alike() -> Sequence[Sequence[str]]:
    """Returns the schedules, those together that put stages onto the same processes."""
    found: dict[tuple[int, bool], list[str]] = defaultdict(list)
    for name, schedule in SCHEDULES.items():
        found[schedule.turns, schedule.in_v].append(name)
    return [*found.values()]


def _seconds(way: FastestSchedule) -> float:
    options, (_, plan, lowering, _) = way.options, way.planned
    lowered, cluster = lowering(plan.program), options.cluster
    fitter = Fitter(
        lowered.ranks,
        cluster,
        lowering.offload,
        update=options.update,
        looped=lowered.looped,
    )
    fitted = fitter.within(options.memory_bytes)
    return price(fitted.program, options.cluster).overlapped_seconds


def _words(seconds: float) -> str:
    return "doesn't fit" if math.isinf(seconds) else human_seconds(seconds)
