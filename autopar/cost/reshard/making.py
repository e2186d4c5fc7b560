"""Making: from which of a value's forms each other one is made that a phase needs.

Completion prices a plan by it, and partition carries it out, so that both know the same reshards.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from operator import attrgetter
from typing import Generic, TypeVar

MAX_ORDERED = 4
"""Up to so many forms all orders of making them are compared; beyond, they are made as needed."""

ROUNDING = 1e-9
"""Relative difference of seconds that doesn't count."""

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Made(Generic[T]):
    """How forms are made.

    Attributes:
        seconds: What that takes.
        steps: The reshards, each from a form to another, in order.
        ways: By which of its ways each group of windows is made.
    """

    seconds: float
    steps: tuple[tuple[T, T], ...] = ()
    ways: tuple[int, ...] = ()


class Making(Generic[T]):
    """Decides how forms are made.

    Args:
        seconds: Predicts what a reshard from one form to another takes.
    """

    def __init__(self, seconds: Callable[[T, T], float]) -> None:
        self.seconds = seconds

    def made(
        self,
        there: Sequence[T],
        needed: Iterable[T],
        reduced: T,
        windows: Iterable[Sequence[tuple[T, float]]] = (),
    ) -> Made[T]:
        """Returns the way to make forms, and then windows, that takes the least time.

        Every form comes from the nearest of those before it; the best tree is that of some order.
        A pending value may be reduced on the way although nobody needs that form: it serves all
        that do, in later phases too.

        Args:
            there: The forms that exist, first the one that the value had at first.
            needed: Those that are needed; they may exist.
            reduced: The first form with nothing pending.
            windows: Per group of windows the ways to make it: of which form, and the seconds from
                there.
        """
        missing = [form for form in dict.fromkeys(needed) if form not in there]
        direct = self._forms(there, missing, reduced)
        total, steps, ways = direct.seconds, list(direct.steps), []
        known = [*there, *(made for _, made in steps)]
        for group in windows:
            near = [(self._nearest(known, form), form, more) for form, more in group]
            costs = [seconds + more for (seconds, _), _, more in near]
            cheapest = min(range(len(costs)), key=costs.__getitem__)
            (_, source), form, _ = near[cheapest]
            total += costs[cheapest]
            ways.append(cheapest)
            if form not in known:
                steps.append((source, form))
                known.append(form)
        return Made(total, tuple(steps), tuple(ways))

    def _forms(self, there: Sequence[T], missing: Sequence[T], reduced: T) -> Made[T]:
        if not 0 < len(missing) <= MAX_ORDERED:
            return self._in_order(there, missing)
        plain = self._least(there, permutations(missing))
        if reduced in there or reduced in missing:
            return plain
        by_way = self._least(there, permutations((reduced, *missing)))
        return by_way if by_way.seconds <= plain.seconds * (1 + ROUNDING) else plain

    def _least(self, there: Sequence[T], orders: Iterable[Sequence[T]]) -> Made[T]:
        return min((self._in_order(there, order) for order in orders), key=attrgetter("seconds"))

    def _in_order(self, there: Sequence[T], order: Sequence[T]) -> Made[T]:
        total, known = 0.0, list(there)
        steps: list[tuple[T, T]] = []
        for form in order:
            seconds, source = self._nearest(known, form)
            total += seconds
            steps.append((source, form))
            known.append(form)
        return Made(total, tuple(steps))

    def _nearest(self, known: Sequence[T], form: T) -> tuple[float, T]:
        if form in known:
            return 0.0, form
        costs = [self.seconds(other, form) for other in known]
        nearest = min(range(len(costs)), key=costs.__getitem__)
        return costs[nearest], known[nearest]
