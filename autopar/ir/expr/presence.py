"""Whether anything is there: `min(1, l + min(1, l))` is 1 wherever `l` isn't 0, as `min(1, l)` is.

What is never negative is positive where one of its terms is, and a term where all its factors are.
So the smaller of 1 and a sum is known by the least sets of factors of which one must be positive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import cast

from autopar.ir.expr.expression import Binary, Expr, IntExpr, Size, minimum, prod, terms_of

Factors = frozenset[Expr]
Ways = frozenset[Factors]
"""Sets of factors: something is positive where all factors of one of them are."""

ALWAYS: Ways = frozenset((frozenset(),))
NEVER: Ways = frozenset()
MOST_WAYS = 16
"""How many sets are looked at."""


def presence(expr: IntExpr) -> IntExpr | None:
    """Returns `min(1, expr)`, the same for expressions that are 0 at the same sizes.

    Returns:
        The expression; None if `expr` may be negative, or is made of too many products.
    """
    ways = _ways(expr)
    if ways is None:
        return None
    if ways in (ALWAYS, NEVER):
        return len(ways)
    products = sorted((sorted(way, key=str) for way in ways), key=str)
    return minimum(1, reduce(lambda left, right: left + right, map(prod, products)))


def _ways(expr: IntExpr) -> Ways | None:
    """Returns when an expression is positive; None if that isn't known, or it may be negative."""
    found = NEVER
    for factors, coefficient in terms_of(expr).items():
        each = map(_ways_of_factor, cast(tuple[Expr, ...], factors))
        way = _together(each) if coefficient > 0 else None
        if way is None:
            return None
        found = _least(found | way)
    return found if len(found) <= MOST_WAYS else None


def _ways_of_factor(factor: Expr) -> Ways | None:
    """Returns when what is no sum or product is positive; see `_ways`."""
    if isinstance(factor, Size) and factor.least > 0:
        return ALWAYS
    if isinstance(factor, Binary):
        return _OF_SIDES[factor.op](factor, _ways(factor.lhs), _ways(factor.rhs))
    return frozenset((frozenset((factor,)),))


def _of_minimum(factor: Binary, left: Ways | None, right: Ways | None) -> Ways | None:
    return _together((left, right))


def _of_maximum(factor: Binary, left: Ways | None, right: Ways | None) -> Ways | None:
    if left is None and right is None:
        return None
    if left is None or right is None:
        return frozenset((frozenset((factor,)),))
    return _least(left | right)


def _of_quotient(factor: Binary, left: Ways | None, right: Ways | None) -> Ways | None:
    return frozenset((frozenset((factor,)),)) if left is not None and right == ALWAYS else None


_OF_SIDES: Mapping[str, Callable[[Binary, Ways | None, Ways | None], Ways | None]] = {
    "min": _of_minimum,
    "max": _of_maximum,
    "//": _of_quotient,
}


def _together(all_ways: Iterable[Ways | None]) -> Ways | None:
    """Returns when several expressions are all positive."""
    found = ALWAYS
    for ways in all_ways:
        if ways is None or len(found) * len(ways) > MOST_WAYS:
            return None
        found = _least(left | right for left in found for right in ways)
    return found


def _least(ways: Iterable[Factors]) -> Ways:
    """Returns the sets that contain no other one."""
    known = frozenset(ways)
    return frozenset(way for way in known if not any(other < way for other in known))
