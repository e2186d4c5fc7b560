"""Rates: what a device reaches in ops of a family, by how much work there is.

Small ops take as long as it takes to start one, and what doesn't fit into a cache is slower: so
there is no one rate. Between the amounts of work that were measured, the logarithm of the seconds
is linear in that of the work. Less work than the least takes as long as that, and more than the
most is done at the rate of that. No op takes less time than one of less work: where it was measured
so, it is noise.

Products depend on shapes too: one with a vector is bound by memory where one of square matrices is
not. What tells them apart is their intensity, the operations for each byte of operands and results;
between the intensities that were measured, the logarithm of the seconds is linear in its logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from autopar.ir.ops.families import ELEMENTWISE, PRODUCTS


@dataclass(frozen=True)
class OpRate:
    """What a device reaches in ops of a family.

    Attributes:
        family: One of `ir.ops.families.FAMILIES`.
        rates: By amount of work, ascending, the work per second, with the start of the op. Work is
            operations for products, and bytes that are read or written for all others.
        dtype: Of the operands; "" for any.
        intensity: Of products, the operations for each byte.
    """

    family: str
    rates: tuple[tuple[float, float], ...]
    dtype: str = ""
    intensity: float = 1.0

    @property
    def peak(self) -> float:
        """The largest rate."""
        return max(rate for _, rate in self.rates)

    @cached_property
    def _points(self) -> tuple[tuple[float, float], ...]:
        """Work and seconds, both ascending."""
        seconds = accumulate((work / rate for work, rate in self.rates), max)
        return tuple(zip((work for work, _ in self.rates), seconds, strict=True))

    def seconds(self, work: float) -> float:
        """Returns the seconds of an op of as much work."""
        points = self._points
        (least, shortest), (most, longest) = points[0], points[-1]
        if work <= least:
            return shortest
        if work >= most:
            return longest * work / most
        low, high = next(each for each in pairwise(points) if work < each[1][0])
        return _between(low, high, work)


def _between(low: tuple[float, float], high: tuple[float, float], at: float) -> float:
    """Returns what is between two points, on a straight line in logarithms."""
    part = math.log(at / low[0]) / math.log(high[0] / low[0])
    return low[1] * math.exp(part * math.log(high[1] / low[1]))


class Rated:
    """The rates of one family and dtype, at all intensities.

    Args:
        rates: They, one at least.
    """

    def __init__(self, rates: Sequence[OpRate]) -> None:
        self._rates = sorted(rates, key=lambda each: each.intensity)
        self.peak = max(each.peak for each in rates)

    def seconds(self, work: float, intensity: float = 1.0) -> float:
        """Returns the seconds of an op of as much work, and of an intensity."""
        rates = self._rates
        high = next((at for at, each in enumerate(rates) if intensity < each.intensity), len(rates))
        if high in (0, len(rates)):
            return rates[min(high, len(rates) - 1)].seconds(work)
        low, upper = rates[high - 1], rates[high]
        return _between(
            (low.intensity, low.seconds(work)), (upper.intensity, upper.seconds(work)), intensity
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of an op's family.

    Attributes:
        family: The family.
        rated: The rates, of the op's dtype or of any.
    """

    family: str
    rated: Rated

    @property
    def counts_operations(self) -> bool:
        """Whether its work is operations, and not bytes."""
        return self.family in PRODUCTS

    @property
    def may_compute(self) -> bool:
        """Whether an op may compute for longer than the family's take to move as much."""
        return self.family == ELEMENTWISE


@dataclass(frozen=True, slots=True)
class FreshMemory:
    """Memory that an allocator gets from the system anew for each tensor, and pays for.

    Attributes:
        above_bytes: Of tensors that are larger.
        seconds_per_byte: What it takes besides.
    """

    above_bytes: float
    seconds_per_byte: float

    def seconds(self, nbytes: int) -> float:
        """Returns the seconds for a tensor."""
        return nbytes * self.seconds_per_byte if nbytes > self.above_bytes else 0.0
