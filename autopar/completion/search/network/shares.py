"""Shares: how much each pair of a value's readers counts in the mean that the proof charges.

What a value's readers take is at least what any two of them take, and so at least any mean of
pairs, whatever the weights. The bound is the higher the more those pairs count that cost most where
it is now; weights follow that step by step, as those of experts (Freund and Schapire, *A
decision-theoretic generalization of on-line learning*, 1997). Values that are alike share them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

LEAST = 0.02
"""The share of a pair at least: none is forgotten."""

RATE = 1.0
"""By how much shares change at a time, as an exponent."""


class Shares:
    """The shares of the pairs of all values."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[float]] = {}

    def shares_of(self, key: Hashable, first: int, count: int) -> list[float]:
        """Returns the shares of the pairs of values that are alike; they change.

        Args:
            key: What is alike.
            first: How many pairs count at first; the rest counts little.
            count: How many there are.
        """
        found = self._known.get(key)
        if found is None:
            shares = [1.0 if index < first else 0.0 for index in range(count)]
            found = self._known[key] = _normalized(shares)
        return found

    def follow(self, costs: Iterable[tuple[list[float], int, float]]) -> None:
        """Lets those pairs count more that cost more.

        Args:
            costs: Shares, a pair's position in them, and seconds that it takes.
        """
        sums: dict[int, tuple[list[float], list[float]]] = {}
        for shares, index, seconds in costs:
            _, total = sums.setdefault(id(shares), (shares, [0.0] * len(shares)))
            total[index] += seconds
        for shares, total in sums.values():
            most = max(total)
            if most - min(total) > 0:
                grown = (s * math.exp(RATE * t / most) for s, t in zip(shares, total, strict=True))
                shares[:] = _normalized(list(grown))


def _normalized(shares: list[float]) -> list[float]:
    """Returns shares of one in sum, none of them less than the least."""
    total, rest = sum(shares), 1 - LEAST * len(shares)
    return [LEAST + rest * share / total for share in shares]
