"""What holds of an expression for every size that is open, and on every rank.

All answers are sure: where nothing is known, the answer is no.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from autopar.ir.expr.expression import (
    Binary,
    Coord,
    IntExpr,
    Size,
    add,
    maximum,
    minimum,
    multiply,
    terms_of,
)
from autopar.ir.expr.presence import presence

Bounds = tuple[float, float]
"""The least and the most that something may be: whole numbers, or infinite."""


def bounds(expr: IntExpr) -> Bounds:
    """Returns bounds of an expression; coordinates may be any from 0."""
    if isinstance(expr, int):
        return expr, expr
    if isinstance(expr, Size):
        return expr.least, expr.most
    if isinstance(expr, Coord):
        return 0, math.inf
    assert isinstance(expr, Binary)
    if expr.op == "//" and bounds(expr.rhs)[0] <= 0:
        return -math.inf, math.inf
    return _BOUNDS[expr.op](bounds(expr.lhs), bounds(expr.rhs))


def is_at_least(expr: IntExpr, least: IntExpr) -> bool:
    """Returns whether an expression is never smaller than another one."""
    if isinstance(expr, int) and isinstance(least, int):
        return expr >= least
    if bounds(add(expr, multiply(least, -1)))[0] >= 0:
        return True
    if isinstance(expr, Binary) and expr.op == "min":
        return is_at_least(expr.lhs, least) and is_at_least(expr.rhs, least)
    if isinstance(least, Binary) and least.op == "max":
        return is_at_least(expr, least.lhs) and is_at_least(expr, least.rhs)
    # Those hold if both sides do, and no other way: these may hold otherwise, too.
    if isinstance(least, Binary) and least.op == "min":
        return is_at_least(expr, least.lhs) or is_at_least(expr, least.rhs)
    if isinstance(expr, Binary) and expr.op == "max":
        return is_at_least(expr.lhs, least) or is_at_least(expr.rhs, least)
    return any(is_at_least(less, 0) for less in _below(add(expr, multiply(least, -1))))


def _below(total: IntExpr) -> Iterator[IntExpr]:
    """Yields sums that are never larger than one of a maximum, or less a minimum or a quotient."""
    terms = terms_of(total)
    if len(terms) < 2:
        return
    single = [(each[0], factor) for each, factor in terms.items() if len(each) == 1]
    atoms = [(atom, factor) for atom, factor in single if isinstance(atom, Binary)]
    for atom, factor in atoms:
        if atom.op == ("max" if factor > 0 else "min"):
            rest = add(total, multiply(atom, -factor))
            yield from (add(rest, multiply(side, factor)) for side in (atom.lhs, atom.rhs))
            break
    for atom, factor in atoms:
        if (more := _not_less(atom, factor)) is not None:
            less = add(total, multiply(add(multiply(atom, factor), more), -1))
            # Of a size that is a multiple, it is what it was.
            if less != total:
                yield less
                break


def _not_less(atom: Binary, factor: int) -> IntExpr | None:
    """Returns what isn't less than a quotient times a number less than 0: `n` of `n // 4 * -4`."""
    divisor = atom.rhs
    if atom.op != "//" or not isinstance(divisor, int) or divisor < 1 or factor >= 0:
        return None
    return None if factor % divisor else multiply(atom.lhs, -factor // divisor)


def is_less(one: IntExpr, other: IntExpr) -> bool | None:
    """Returns whether an expression is always smaller than another one; None if that varies."""
    if is_at_least(other, add(one, 1)):
        return True
    return False if is_at_least(one, other) else None


def is_equal(one: IntExpr, other: IntExpr) -> bool | None:
    """Returns whether two expressions are always equal, or never; None if that isn't known."""
    if one == other or add(one, multiply(other, -1)) == 0:
        return True
    return False if is_less(one, other) or is_less(other, one) else None


def smaller(one: IntExpr, other: IntExpr) -> IntExpr:
    """Returns the smaller of two expressions, without the other one if that is known."""
    if is_at_least(other, one):
        return one
    if is_at_least(one, other):
        return other
    found = presence(other) if one == 1 else presence(one) if other == 1 else None
    return minimum(one, other) if found is None else found


def larger(one: IntExpr, other: IntExpr) -> IntExpr:
    """Returns the larger of two expressions, without the other one if that is known."""
    if is_at_least(one, other):
        return one
    if is_at_least(other, one):
        return other
    found = _all_but_one(other) if one == 0 else _all_but_one(one) if other == 0 else None
    return maximum(one, other) if found is None else found


def _all_but_one(expr: IntExpr) -> IntExpr | None:
    """Returns `max(0, expr)` as a sum, if it is one: `l` for `l + min(1, l) - 1`."""
    there = presence(add(expr, 1))
    found = None if there is None else add(add(expr, 1), multiply(there, -1))
    return found if found is not None and bounds(found)[0] >= 0 else None


def can_exceed(expr: IntExpr, value: int) -> bool:
    """Returns whether nothing rules out that an expression is more than a number."""
    return expr > value if isinstance(expr, int) else bounds(expr)[1] > value


def may_be(expr: IntExpr, value: int) -> bool:
    """Returns whether nothing rules out that an expression is a number."""
    least, most = bounds(expr)
    return least <= value <= most


def divides(divisor: int, expr: IntExpr) -> bool:
    """Returns whether an expression is always a multiple of a number."""
    if isinstance(expr, int):
        return expr % divisor == 0
    return all(factor % divisor == 0 for factor in terms_of(expr).values())


def _plus(one: Bounds, other: Bounds) -> Bounds:
    return one[0] + other[0], one[1] + other[1]


def _times(one: Bounds, other: Bounds) -> Bounds:
    # An infinite bound times 0 is 0: what is infinite is some number, not known which.
    ends = [left * right if left and right else 0 for left in one for right in other]
    return min(ends), max(ends)


def _divided(one: Bounds, other: Bounds) -> Bounds:
    ends = [_end(left, right) for left in one for right in other]
    return min(ends), max(ends)


def _end(left: float, right: float) -> float:
    if math.isinf(left):
        return left
    return (0 if left >= 0 else -1) if math.isinf(right) else left // right


def _minimum(one: Bounds, other: Bounds) -> Bounds:
    return min(one[0], other[0]), min(one[1], other[1])


def _maximum(one: Bounds, other: Bounds) -> Bounds:
    return max(one[0], other[0]), max(one[1], other[1])


_BOUNDS: Mapping[str, Callable[[Bounds, Bounds], Bounds]] = {
    "+": _plus,
    "*": _times,
    "//": _divided,
    "min": _minimum,
    "max": _maximum,
}
