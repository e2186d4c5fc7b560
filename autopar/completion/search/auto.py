"""Auto: the strategy that searches, and falls back to the best preset where that is faster.

How much slower than the fastest its plan is at most is proven for all plans in which every op is
computed in one of the ways that search considers, however values lie in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from autopar.completion.search.fastest import FEW_OPS, Search
from autopar.completion.search.forecast import Forecast
from autopar.completion.search.incumbents import Incumbent
from autopar.completion.search.naming import named
from autopar.completion.search.watch import Progress
from autopar.completion.solve import Solution
from autopar.ir.units import human_seconds

CLOSE_FEW, CLOSE_MANY = 2.0, 1.05
"""Presets that take up to so many times a plan's seconds may be faster once small sums are joined:
in programs of few ops, where most seconds are those of small messages, and of many."""

MOST_RIVALS = 2
"""Such presets that are looked at."""


@dataclass(frozen=True)
class Decided:
    """A plan, and what to say of it.

    Attributes:
        solution: The plan.
        forecast: What search predicts; None where nothing was searched.
        rivals: Presets that may be faster as they are run, with small sums joined.
    """

    solution: Solution
    forecast: Forecast | None = None
    rivals: tuple[Decided, ...] = ()


def decide(search: Search, byte_seconds: float = 0.0) -> Decided:
    """Returns the fastest plan that search or a preset finds.

    Args:
        search: Of the program with the user's pins.
        byte_seconds: The price of a byte that a rank keeps for long. With one, presets are only
            starts: they are plans without.
    """
    graph, found, watch = search.graph, search.run(byte_seconds), search.watch
    if not graph.space.axes:
        return Decided(found.solution)
    if byte_seconds:
        return Decided(found.solution, Forecast(named(found.solution), found.solution.seconds))
    solution, seconds = found.solution, found.seconds
    against = ""
    presets = search.presets(found.gap)
    best = next(iter(presets), None)
    if best is not None:
        against = f"the best preset tried, {best.strategy}, takes {human_seconds(best.seconds, 4)}"
        if best.seconds < seconds:
            solution, seconds = best.solution, best.seconds
            against = f"this is preset {best.strategy}, which search did not beat"
    watch.tell(Progress("plan found", seconds, found.bound_seconds))
    late = f"stopped at the limit of {watch.seconds_limit:g} s" if watch.is_late else ""
    notes = tuple(filter(None, (against, late)))
    forecast = Forecast(named(solution), seconds, found.bound_seconds, notes)
    near = seconds * (CLOSE_FEW if len(graph.nodes) <= FEW_OPS else CLOSE_MANY)
    rivals = [each for each in presets if each.solution is not solution and each.seconds <= near]
    return Decided(solution, forecast, tuple(map(_rival, rivals[:MOST_RIVALS])))


def _rival(preset: Incumbent) -> Decided:
    note = f"this is preset {preset.strategy}, the fastest plan tried once small sums are joined"
    forecast = Forecast(named(preset.solution), preset.seconds, notes=(note,))
    return Decided(preset.solution, forecast)
