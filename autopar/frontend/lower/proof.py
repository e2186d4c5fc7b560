"""Whether what torch asks of open sizes holds for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sympy

from autopar.ir.expr.expression import IntExpr, add, multiply
from autopar.ir.expr.facts import is_equal, is_less
from autopar.ir.expr.periodic import least_value

Find = Callable[[sympy.Basic], IntExpr]
"""Returns a number that torch computes with as an expression."""


def holds(condition: sympy.Basic, find: Find) -> bool | None:
    """Returns whether a condition holds for all sizes, or for none; None if that isn't known.

    Args:
        condition: What torch asks.
        find: Makes expressions of both sides of a relation.
    """
    if condition in (sympy.true, sympy.false):
        return bool(condition)
    if isinstance(condition, sympy.Not):
        return _opposite(holds(condition.args[0], find))
    if isinstance(condition, (sympy.And, sympy.Or)):
        return _joined([holds(each, find) for each in condition.args], condition)
    decide = _DECIDE.get(type(condition))
    return None if decide is None else decide(*map(find, condition.args))


def _joined(parts: list[bool | None], condition: sympy.Basic) -> bool | None:
    deciding = isinstance(condition, sympy.Or)
    if deciding in parts:
        return deciding
    return None if None in parts else not deciding


def _opposite(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _is_less(one: IntExpr, other: IntExpr) -> bool | None:
    known = is_less(one, other)
    if known is not None:
        return known
    least = least_value(add(other, multiply(one, -1)))
    if least is not None and least > 0:
        return True
    beyond = None if least is None else least_value(add(one, multiply(other, -1)))
    return False if beyond is not None and beyond >= 0 else None


def _is_equal(one: IntExpr, other: IntExpr) -> bool | None:
    known = is_equal(one, other)
    if known is not None:
        return known
    less, more = (_is_less(*pair) for pair in ((one, other), (other, one)))
    if less is False and more is False:
        return True
    return False if less or more else None


_DECIDE: Mapping[type, Callable[[IntExpr, IntExpr], bool | None]] = {
    sympy.Eq: _is_equal,
    sympy.Ne: lambda left, right: _opposite(_is_equal(left, right)),
    sympy.StrictLessThan: _is_less,
    sympy.StrictGreaterThan: lambda left, right: _is_less(right, left),
    sympy.LessThan: lambda left, right: _opposite(_is_less(right, left)),
    sympy.GreaterThan: lambda left, right: _opposite(_is_less(left, right)),
}
