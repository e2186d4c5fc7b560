"""Strides within a dimension, which are products of sizes: which one is within which.

What is compared are expressions, not the numbers that are planned: a batch and a length that are
both planned to be 1 are two sizes. Where a size is 0, nothing is within a dimension, so all are
taken for 1 at least.
"""

from __future__ import annotations

from autopar.ir.expr.expression import IntExpr, evaluate, exact_quotient, sizes_of, terms_of
from autopar.ir.expr.facts import is_at_least


def order(stride: IntExpr) -> tuple[int, int]:
    """Returns a key by which a stride comes before all that are multiples of it."""
    sizes = {str(size): max(size.step, size.planned) for size in sizes_of(stride)}
    return evaluate(stride, sizes), max(map(len, terms_of(stride)), default=0)


def is_within(inner: IntExpr, outer: IntExpr) -> bool:
    """Returns whether a stride is never larger than another one."""
    if isinstance(inner, int) and isinstance(outer, int):
        return inner <= outer
    return exact_quotient(outer, inner) is not None or is_at_least(outer, inner)


def is_between(inner: IntExpr, stride: IntExpr, outer: IntExpr) -> bool:
    """Returns whether a stride is another one than two that it is between."""
    return inner != stride != outer and is_within(inner, stride) and is_within(stride, outer)
