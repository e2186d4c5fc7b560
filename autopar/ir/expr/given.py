"""What holds of expressions where relations between open sizes are given."""

from __future__ import annotations

from collections.abc import Iterable

from autopar.ir.expr.expression import FOLD, Binary, IntExpr, add, multiply
from autopar.ir.expr.facts import bounds, is_at_least
from autopar.ir.expr.relation import Relation


class Given:
    """Relations that hold in every call, as facts.

    All answers are sure: where nothing is known, the answer is no.

    Args:
        relations: The relations.
    """

    def __init__(self, relations: Iterable[Relation] = ()) -> None:
        self._positive: list[IntExpr] = []
        for each in relations:
            more = _difference(each.right, each.left)
            self._positive += [more, multiply(more, -1)] if each.sign == "==" else [more]

    def is_at_least(self, expr: IntExpr, least: IntExpr) -> bool:
        """Returns whether an expression is never smaller than another one."""
        if is_at_least(expr, least):
            return True
        more = _difference(expr, least)
        return any(bounds(_difference(more, each))[0] >= 0 for each in self._positive)

    def is_equal(self, one: IntExpr, other: IntExpr) -> bool:
        """Returns whether two expressions are always equal."""
        return self.is_at_least(one, other) and self.is_at_least(other, one)

    def simplified(self, expr: IntExpr) -> IntExpr:
        """Returns an expression without the smaller or larger parts that never decide."""
        if not self._positive or not isinstance(expr, Binary):
            return expr
        left, right = self.simplified(expr.lhs), self.simplified(expr.rhs)
        if expr.op in ("min", "max"):
            less, more = (left, right) if expr.op == "min" else (right, left)
            if self.is_at_least(more, less):
                return left
            if self.is_at_least(less, more):
                return right
        return FOLD[expr.op](left, right)


def _difference(one: IntExpr, other: IntExpr) -> IntExpr:
    return add(one, multiply(other, -1))
