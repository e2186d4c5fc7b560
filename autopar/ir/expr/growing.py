"""Expressions that grow with a size: from which size on they are at least a number."""

from __future__ import annotations

from typing import cast

from autopar.ir.expr.expression import (
    Binary,
    Coord,
    Expr,
    IntExpr,
    Size,
    evaluate,
    sizes_of,
    terms_of,
)
from autopar.ir.expr.facts import bounds
from autopar.ir.expr.polynomial import Monomial


def is_growing(expr: IntExpr) -> bool:
    """Returns whether an expression is known never to shrink where a size grows."""
    if isinstance(expr, (int, Size)):
        return True
    if isinstance(expr, Coord):
        return False
    assert isinstance(expr, Binary)
    if expr.op in ("min", "max"):
        return is_growing(expr.lhs) and is_growing(expr.rhs)
    if expr.op == "//":
        return isinstance(expr.rhs, int) and expr.rhs > 0 and is_growing(expr.lhs)
    return all(_is_growing_term(*each) for each in terms_of(expr).items())


def _is_growing_term(atoms: Monomial, factor: int) -> bool:
    if len(atoms) == 1:
        return factor > 0 and is_growing(cast(Expr, atoms[0]))
    return not atoms or (factor > 0 and all(map(_is_positive, cast(tuple[Expr, ...], atoms))))


def _is_positive(factor: Expr) -> bool:
    """Returns whether a factor of a term grows, and is never negative."""
    return is_growing(factor) and bounds(factor)[0] >= 0


def most_for(expr: IntExpr, number: int) -> tuple[Size, int] | None:
    """Returns the one size on which an expression depends, and up to which it isn't larger.

    Args:
        expr: The expression.
        number: What it is to be at most.

    Returns:
        None as of `least_for`, or if it is always larger.
    """
    beyond = least_for(expr, number + 1)
    return None if beyond is None or beyond[1] <= beyond[0].least else (beyond[0], beyond[1] - 1)


def least_for(expr: IntExpr, number: int) -> tuple[Size, int] | None:
    """Returns the one size on which an expression depends, and from which on it is that large.

    Args:
        expr: The expression.
        number: What it is to be at least.

    Returns:
        None if it depends on several sizes, may shrink where the size grows, or is never that
        large within the size's range.
    """
    sizes = sizes_of(expr)
    if len(sizes) != 1 or not is_growing(expr):
        return None
    (size,) = sizes
    low, high = size.least, size.most
    if evaluate(expr, {str(size): high}) < number:
        return None
    while low < high:
        middle = (low + high) // 2
        if evaluate(expr, {str(size): middle}) >= number:
            high = middle
        else:
            low = middle + 1
    return size, low
