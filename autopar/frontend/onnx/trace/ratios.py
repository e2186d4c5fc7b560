"""Sizes as floating-point numbers: exporters scale them so, round them, and cast them back.

A number is an expression over a constant. In floating point it must be, when it is rounded down or
up, the same integer. So factors are small, and fractions by powers of two, which are exact for all
sizes below 2**18. A quotient by another number isn't; but a size over 7 is rounded to a whole
number only if it is one, so that it may be rounded down or up, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from autopar.frontend.onnx.trace.node import Array, Node, Refused
from autopar.ir.expr.expression import IntExpr
from autopar.ir.expr.facts import is_at_least

MOST_FACTOR = 64
"""What sizes are multiplied by at most."""
MOST_PARTS = 16
"""Into how many parts of a whole number they are cut at most, other than by a last quotient."""
MOST_DIVISOR = 4096
"""What they are divided by at most."""
EXACT = (torch.float32, torch.float64)
"""The dtypes that hold any size of which a tensor is made, nearly always."""


class Inexact(Refused):
    """A number isn't known exactly; the program may compute it."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number: an expression of open sizes over a constant."""

    numerator: IntExpr
    denominator: int = 1

    @property
    def factor(self) -> Fraction:
        """The number, if it is a constant.

        Raises:
            Inexact: If it isn't.
        """
        if not isinstance(self.numerator, int):
            raise Inexact(f"{self} is open")
        return Fraction(self.numerator, self.denominator)

    @property
    def is_exact(self) -> bool:
        """Whether floating point holds it exactly."""
        parts = self.denominator
        return parts <= MOST_PARTS and parts & (parts - 1) == 0

    def times(self, factor: Fraction) -> Ratio:
        """Returns it multiplied by a constant."""
        reduced = Fraction(factor.numerator, factor.denominator * self.denominator)
        if not self.is_exact or abs(reduced.numerator) > MOST_FACTOR:
            raise Inexact(f"{self} times {factor} is rounded")
        return Ratio(self.numerator * reduced.numerator, reduced.denominator)

    def __str__(self) -> str:
        return f"{self.numerator} / {self.denominator}"


def ratios_of(array: Array) -> Any:
    """Returns floating-point numbers as ratios; None if one isn't small and exact."""
    found = np.empty(array.shape, dtype=object)
    for at, number in np.ndenumerate(array):
        ratio = Fraction(float(number)) if np.isfinite(number) else Fraction(0, 1)
        if not np.isfinite(number) or ratio.denominator > MOST_PARTS or abs(ratio) > MOST_DIVISOR:
            return None
        found[at] = Ratio(ratio.numerator, ratio.denominator)
    return found


def _product(one: Ratio, other: Ratio) -> Ratio:
    constant = isinstance(one.numerator, int)
    return other.times(one.factor) if constant else one.times(other.factor)


def _quotient(one: Ratio, other: Ratio) -> Ratio:
    if other.factor <= 0:
        raise Inexact(f"{one} is divided by {other}")
    return one.times(1 / other.factor)


def _sum(sign: int) -> Callable[[Ratio, Ratio], Ratio]:
    def fold(one: Ratio, other: Ratio) -> Ratio:
        if not one.is_exact or not other.is_exact:
            raise Inexact(f"{one} and {other} are rounded")
        left, right = one.numerator * other.denominator, other.numerator * one.denominator
        return Ratio(left + right * sign, one.denominator * other.denominator)

    return fold


def _floor(ratio: Ratio) -> Ratio:
    return Ratio(_rounded(ratio, 0))


def _ceil(ratio: Ratio) -> Ratio:
    return Ratio(_rounded(ratio, ratio.denominator - 1))


def truncated(ratio: Ratio) -> IntExpr:
    """Returns a number without its fraction, as casts to integers do."""
    return _rounded(ratio, 0)


def _rounded(ratio: Ratio, added: int) -> IntExpr:
    if ratio.denominator == 1:
        return ratio.numerator
    if not is_at_least(ratio.numerator, 0):
        raise Inexact(f"whether {ratio} is negative isn't known")
    return (ratio.numerator + added) // ratio.denominator


Fold = Callable[[Node, Sequence[Any]], Any]


def _elementwise(fold: Callable[..., Any]) -> Fold:
    def run(node: Node, inputs: Sequence[Any]) -> Any:
        given = [each for each in inputs if each is not None]
        return np.asarray(np.frompyfunc(fold, len(given), 1)(*given), dtype=object)

    return run


cast_to_float: Fold = _elementwise(Ratio)
cast_to_integer: Fold = _elementwise(truncated)

RATIOS: Mapping[str, Fold] = {
    "Add": _elementwise(_sum(1)),
    "Sub": _elementwise(_sum(-1)),
    "Mul": _elementwise(_product),
    "Div": _elementwise(_quotient),
    "Floor": _elementwise(_floor),
    "Ceil": _elementwise(_ceil),
}
"""What computes with them, by ONNX operator."""
