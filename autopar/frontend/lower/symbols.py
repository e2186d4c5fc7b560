"""Tables between torch's symbols and our expressions of open sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import sympy
import torch
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod

from autopar.ir.expr.expression import IntExpr, add, floordiv, multiply, prod
from autopar.ir.expr.facts import larger, smaller
from autopar.ir.expr.periodic import least_value

SymSize = int | torch.SymInt


class Unexpressed(ValueError):
    """A size, or what must hold of sizes, can't be said by expressions."""


def as_limit(condition: sympy.Basic) -> sympy.Basic:
    """Returns `x == Min(512, x)` as `x <= 512`, which says the same; others as they are."""
    if isinstance(condition, sympy.Eq):
        for size, limited in (condition.args, condition.args[::-1]):
            if isinstance(limited, Min) and size in limited.args:
                rest = [each for each in limited.args if each != size]
                return sympy.Le(size, Min(*rest), evaluate=False)  # type: ignore[no-untyped-call]
    return condition


SPELLED: Mapping[type, str] = {sympy.Eq: "==", sympy.Ne: "!="}
LESS: Mapping[type, Callable[[IntExpr, IntExpr], tuple[IntExpr, IntExpr]]] = {
    sympy.LessThan: lambda left, right: (left, right),
    sympy.StrictLessThan: lambda left, right: (left + 1, right),
    sympy.GreaterThan: lambda left, right: (right, left),
    sympy.StrictGreaterThan: lambda left, right: (right + 1, left),
}
"""What must not be larger than what, of each relation."""


def _remainder(args: list[IntExpr]) -> IntExpr:
    dividend, divisor = args
    return dividend - dividend // divisor * divisor


def _power(args: list[IntExpr]) -> IntExpr:
    base, exponent = args
    if not isinstance(exponent, int) or exponent < 0:
        raise Unexpressed(f"a power of {exponent}")
    return prod([base] * exponent)


def _larger(one: IntExpr, other: IntExpr) -> IntExpr:
    for more, less in ((one, other), (other, one)):
        least = least_value(add(more, multiply(less, -1)))
        if least is not None and least >= 0:
            return more
    return larger(one, other)


def _smaller(one: IntExpr, other: IntExpr) -> IntExpr:
    for less, more in ((one, other), (other, one)):
        least = least_value(add(more, multiply(less, -1)))
        if least is not None and least >= 0:
            return less
    return smaller(one, other)


EXPRESSIONS: Mapping[type, Callable[[list[IntExpr]], IntExpr]] = {
    sympy.Add: lambda args: reduce(add, args),
    sympy.Mul: prod,
    sympy.Pow: _power,
    FloorDiv: lambda args: floordiv(*args),
    CleanDiv: lambda args: floordiv(*args),
    Mod: _remainder,
    PythonMod: _remainder,
    Max: lambda args: reduce(_larger, args),
    Min: lambda args: reduce(_smaller, args),
}
SYMBOLIC: Mapping[str, Callable[[SymSize, SymSize], SymSize]] = {
    "+": lambda left, right: left + right,
    "*": lambda left, right: left * right,
    "//": lambda left, right: left // right,
    "min": torch.sym_min,
    "max": torch.sym_max,
}
