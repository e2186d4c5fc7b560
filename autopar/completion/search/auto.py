"""Auto: the strategy that searches, and falls back to the best preset where that is faster.

How much slower than the fastest its plan is at most is proven for all plans in which every op is
computed in one of the ways that search considers, however values lie in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.completion.propagate.local_search import GAIN
from autopar.completion.propagate.solve import Solution
from autopar.completion.search.fastest import Search
from autopar.completion.search.forecast import Forecast
from autopar.completion.search.found import Found
from autopar.completion.search.incumbents import PROVEN, Incumbent
from autopar.completion.search.learned import CLOSE
from autopar.completion.search.naming import named
from autopar.completion.search.network.memory_price import FREE, MemoryPrice
from autopar.completion.search.watch import Progress

NO_GAIN = (
    "no split was found to help at this size: communication would take longer than it saves"
    "; give a larger batch, or a strategy by name"
)
"""What is said of a plan by which every process does all the work."""

MORE = "a search of more effort may find a faster one"
"""What is said of a search that ended since it had done the work that it may."""


@dataclass(frozen=True)
class Decided:
    """A plan, and what to say of it.

    Attributes:
        solution: The plan.
        forecast: What search predicts; None where nothing was searched.
    """

    solution: Solution
    forecast: Forecast | None = None


def decide(search: Search, price: MemoryPrice = FREE) -> Decided:
    """Returns the fastest plan that search or a preset finds.

    Args:
        search: Of the program with the user's pins.
        price: Of the bytes that a rank holds. With one, presets are only starts: they are plans
            without.
    """
    graph, found, watch = search.graph, search.best_at(price), search.watch
    if not graph.space.axes:
        return Decided(found.solution)
    if not price.is_free:
        return Decided(found.solution, Forecast(named(found.solution), found.solution.seconds))
    solution, seconds = found.solution, found.seconds
    presets = search.presets(found.gap)
    best = presets[0] if presets else None
    note = _is_preset(found, presets)
    against = (best.strategy, best.seconds) if best is not None and not note else None
    if best is not None and best.seconds < seconds:
        solution, seconds = best.solution, best.seconds
    watch.tell(Progress("plan found", seconds, found.bound_seconds))
    late = f"stopped at the limit of {watch.time_limit:g} s" if watch.is_out_of_time else ""
    alone = NO_GAIN if not late and _is_replicated(solution) else ""
    # A preset may compute an op in a way that search doesn't consider, nor its bound.
    bound = found.bound_seconds if seconds >= found.bound_seconds * (1 - CLOSE) else None
    more = MORE if search.is_cut and not late and not _is_proven(seconds, bound) else ""
    notes = tuple(filter(None, (note, alone, late, more)))
    forecast = Forecast(named(solution), seconds, bound, against, notes)
    return Decided(solution, forecast)


def _is_proven(seconds: float, bound: float | None) -> bool:
    """Whether no plan can be much faster."""
    return bound is not None and seconds * (1 - PROVEN) <= bound


def _is_preset(found: Found, presets: Sequence[Incumbent]) -> str:
    """Returns which of the presets tried a plan is; "" if it is none of them."""
    ties = [each for each in presets if abs(found.seconds - each.seconds) <= GAIN * each.seconds]
    same = next((each for each in ties if _lie_alike(found, each)), None)
    if same is not None:
        return f"this is preset {same.strategy}"
    if presets and not ties and presets[0].seconds < found.seconds:
        return f"this is preset {presets[0].strategy}, which search did not beat"
    return ""


def _lie_alike(found: Found, preset: Incumbent) -> bool:
    """Whether all values lie as by a preset."""
    pairs = zip(found.solution.forms, preset.solution.forms, strict=True)
    return all(one.layout == other.layout for one, other in pairs)


def _is_replicated(solution: Solution) -> bool:
    """Whether every process does all the work."""
    return not any(choice.splits.items for choice in solution.choices)
