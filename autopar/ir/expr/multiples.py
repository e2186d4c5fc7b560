"""Sizes that are multiples of a number: which one makes two expressions equal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from autopar.ir.expr.expression import (
    UNBOUNDED,
    Binary,
    IntExpr,
    Size,
    common_factor,
    exact_quotient,
    sizes_of,
    substitute,
)

MOST_STEP = 4096
"""The largest number of which a size is taken for a multiple."""


def equal_for_multiples(one: IntExpr, other: IntExpr) -> Size | None:
    """Returns the one size of two expressions as the multiple for which they are equal.

    Sizes that are factors of both don't count.

    Returns:
        None if they depend on several sizes, or no multiples of their divisors make them equal.
    """
    sizes = sizes_of(one) | sizes_of(other)
    if len(sizes) > 1:
        factor = common_factor(one, other)
        left, right = exact_quotient(one, factor), exact_quotient(other, factor)
        if factor != 1 and left is not None and right is not None:
            return equal_for_multiples(left, right)
    if len(sizes) != 1:
        return None
    (size,) = sizes
    together = math.lcm(size.step, *divisors(one), *divisors(other))
    if together > MOST_STEP:
        return None
    for step in range(size.step, together + 1, size.step):
        found = in_steps(size, step) if together % step == 0 else None
        if found is not None and _are_equal(one, other, found):
            return found
    return None


def _are_equal(one: IntExpr, other: IntExpr, size: Size) -> bool:
    left, right = (substitute(side, {str(size): size}) for side in (one, other))
    return left == right or exact_quotient(left, right) == 1


def divisors(expr: IntExpr) -> Iterator[int]:
    """Yields the numbers by which parts of an expression are divided."""
    if isinstance(expr, Binary):
        if expr.op == "//" and isinstance(expr.rhs, int) and expr.rhs > 0:
            yield expr.rhs
        yield from divisors(expr.lhs)
        yield from divisors(expr.rhs)


def in_steps(size: Size, step: int) -> Size | None:
    """Returns a size that is a multiple of a number; None if there is no such in its range."""
    least = -(-size.least // step) * step
    most = size.most if size.most == UNBOUNDED else size.most // step * step
    if least > most:
        return None
    planned = min(max(round(size.planned / step) * step, least), most // step * step)
    return replace(size, least=least, most=most, planned=planned, step=step)
