"""The least value of sums and quotients of one size, which is found within one period.

With `f(h) = (h + 1) // 2 - h // 2`, `f(h + 2)` is `f(h)` and a number, here 0, for every `h`. So
the least value is that of two sizes, wherever it isn't lower for ever larger ones.
"""

from __future__ import annotations

import math

from autopar.ir.expr.expression import Binary, IntExpr, Size, evaluate, sizes_of

MOST_PERIOD = 4096
"""How many sizes are looked at."""


def least_value(expr: IntExpr) -> int | None:
    """Returns the least that an expression is for any size in the range of its only one.

    Returns:
        None if it depends on several sizes, or isn't made of sums, multiples and quotients.
    """
    if isinstance(expr, int):
        return expr
    sizes, found = sizes_of(expr), _period(expr)
    if len(sizes) != 1 or found is None or found[0] > MOST_PERIOD:
        return None
    (size,), (period, growth) = sizes, found
    first = size.least if growth >= 0 else max(size.least, size.most - period + 1)
    return min(
        evaluate(expr, {str(size): each})
        for each in range(first, min(size.most, first + period - 1) + 1)
        if size.admits(each)
    )


def _period(expr: IntExpr) -> tuple[int, int] | None:
    """Returns after how many sizes an expression begins anew, and by how much it is more then."""
    if isinstance(expr, (int, Size)):
        return (1, 0) if isinstance(expr, int) else (expr.step, expr.step)
    if not isinstance(expr, Binary) or expr.op in ("min", "max"):
        return None
    left, right = _period(expr.lhs), _period(expr.rhs)
    if left is None or right is None:
        return None
    if expr.op == "+":
        period = math.lcm(left[0], right[0])
        return period, sum(growth * (period // each) for each, growth in (left, right))
    if not isinstance(expr.rhs, int):
        return None
    if expr.op == "*":
        return left[0], left[1] * expr.rhs
    return _divided(left, expr.rhs) if expr.rhs > 0 else None


def _divided(dividend: tuple[int, int], divisor: int) -> tuple[int, int]:
    period, growth = dividend
    times = divisor // math.gcd(divisor, growth)
    return period * times, growth * times // divisor
