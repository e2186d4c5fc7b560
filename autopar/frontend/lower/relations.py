"""Relations between open sizes that are checked at each call, of what torch takes for granted."""

from __future__ import annotations

from collections.abc import Iterable

import sympy

from autopar.base.errors import UNKNOWN, Loc
from autopar.frontend.lower.proof import Find
from autopar.frontend.lower.symbols import LESS, Unexpressed, as_limit
from autopar.ir.expr.expression import IntExpr, Size, add, from_terms, terms_of
from autopar.ir.expr.facts import is_less
from autopar.ir.expr.given import Given
from autopar.ir.expr.relation import Relation


def relation_of(condition: sympy.Basic, find: Find, loc: Loc = UNKNOWN) -> Relation | None:
    """Returns a condition as a relation of open sizes.

    Args:
        condition: What must hold.
        find: Makes expressions of both sides.
        loc: What needs it.

    Returns:
        None if it isn't plain: an inequality, an equality, or that something is a multiple.
    """
    condition = as_limit(condition)
    compare = LESS.get(type(condition))
    if compare is None and not isinstance(condition, sympy.Eq):
        return None
    try:
        left, right = map(find, condition.args)
    except Unexpressed:
        return None
    if compare is None:
        found = Relation(*_balanced(left, right), loc)
    else:
        less, more = compare(left, right)
        found = Relation(*_without_numbers(less, more), loc)
    return found if found.names else None


def _balanced(left: IntExpr, right: IntExpr) -> tuple[IntExpr, str, IntExpr]:
    """Returns an equality, so that what is a multiple of a number is on the right."""
    if left == 0 and len(terms_of(right)) > 1:
        left, right = right, left
    if right != 0:
        return (left, "==", right) if not isinstance(left, Size) else (right, "==", left)
    more = {each: factor for each, factor in terms_of(left).items() if factor > 0}
    less = {each: -factor for each, factor in terms_of(left).items() if factor < 0}
    return from_terms(less), "==", from_terms(more)


def _without_numbers(less: IntExpr, more: IntExpr) -> tuple[IntExpr, str, IntExpr]:
    """Returns an inequality, so that one side is a number if it may be."""
    side = less if isinstance(more, int) else more
    number = terms_of(side).get((), 0)
    return add(less, -number), "<=", add(more, -number)


def is_possible(relation: Relation) -> bool:
    """Returns whether nothing rules out that a relation holds."""
    if is_less(relation.right, relation.left):
        return False
    return relation.sign == "<=" or not is_less(relation.left, relation.right)


def without_implied(relations: Iterable[Relation]) -> tuple[Relation, ...]:
    """Returns relations without those that follow from others."""
    found: list[Relation] = []
    for each in sorted(relations, key=lambda relation: relation.sign):
        if not is_implied(each, Given(found)):
            found.append(each)
    return tuple(found)


def is_implied(relation: Relation, given: Given) -> bool:
    """Returns whether a relation is sure to hold where others do."""
    left, right = given.simplified(relation.left), given.simplified(relation.right)
    if relation.sign == "<=":
        return given.is_at_least(right, left)
    return given.is_equal(left, right)
