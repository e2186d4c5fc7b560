"""Auto: the strategy that searches, and falls back to the best preset where that is faster.

How much slower than the fastest its plan is at most is proven for all plans in which every op is
computed in one of the ways that search considers, however values lie in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from autopar.completion.search.fastest import Search
from autopar.completion.search.forecast import Forecast
from autopar.completion.search.naming import named
from autopar.completion.search.watch import Progress
from autopar.completion.solve import Solution


@dataclass(frozen=True)
class Decided:
    """A plan, and what to say of it.

    Attributes:
        solution: The plan.
        forecast: What search predicts; None where nothing was searched.
    """

    solution: Solution
    forecast: Forecast | None = None


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
    against: tuple[str, float] | None = None
    note = ""
    presets = search.presets(found.gap)
    best = next(iter(presets), None)
    if best is not None:
        against = best.strategy, best.seconds
        if best.seconds < seconds:
            solution, seconds, against = best.solution, best.seconds, None
            note = f"this is preset {best.strategy}, which search did not beat"
    watch.tell(Progress("plan found", seconds, found.bound_seconds))
    late = f"stopped at the limit of {watch.seconds_limit:g} s" if watch.is_late else ""
    notes = tuple(filter(None, (note, late)))
    forecast = Forecast(named(solution), seconds, found.bound_seconds, against, notes)
    return Decided(solution, forecast)
