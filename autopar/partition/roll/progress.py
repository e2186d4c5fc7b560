"""Progress: what an argument is in each iteration, as an expression of its number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from autopar.ir.expr import polynomial
from autopar.ir.expr.expression import (
    Expr,
    IntExpr,
    Size,
    evaluate,
    from_terms,
    maximum,
    minimum,
    terms_of,
)
from autopar.ir.program import Arg


class NotAlikeError(Exception):
    """No expression is known that is the argument in all iterations."""


def progress(args: Sequence[Arg], index: Size) -> Arg:
    """Returns what an argument is in an iteration.

    Args:
        args: What it is in each, one after another.
        index: The number of the iteration, whose least value is that of the first one.

    Raises:
        NotAlikeError: If it isn't known.
    """
    first = args[0]
    if all(type(each) is type(first) and each == first for each in args):
        return first
    if all(isinstance(each, tuple) for each in args):
        lists = cast(Sequence[tuple[Arg, ...]], args)
        if len({len(each) for each in lists}) > 1:
            raise NotAlikeError
        return tuple(progress(items, index) for items in zip(*lists, strict=True))
    if any(isinstance(each, bool) or not isinstance(each, (int, Expr)) for each in args):
        raise NotAlikeError
    return _progress(cast(Sequence[IntExpr], args), index)


def _progress(sizes: Sequence[IntExpr], index: Size) -> IntExpr:
    found = _linear(sizes, index)
    if found is None and all(isinstance(each, int) for each in sizes):
        found = _clamped(cast(Sequence[int], sizes), index)
    if found is None:
        raise NotAlikeError
    return found


def _linear(sizes: Sequence[IntExpr], index: Size) -> IntExpr | None:
    """Returns a sum that grows by the same in each iteration; None if it isn't one."""
    terms = [terms_of(each) for each in sizes]
    steps = [polynomial.plus(after, before, -1) for before, after in pairwise(terms)]
    if any(step != steps[0] for step in steps):
        return None
    number = polynomial.plus(terms_of(index), terms_of(index.least), -1)
    return from_terms(polynomial.plus(terms[0], polynomial.product(number, steps[0])))


def _clamped(sizes: Sequence[int], index: Size) -> IntExpr | None:
    """Returns what grows by the same from iteration to iteration, but not past an end."""
    steps = [after - before for before, after in pairwise(sizes)]
    step = Counter(filter(None, steps)).most_common(1)[0][0]
    at = steps.index(step)
    least, most = min(sizes), max(sizes)
    found: IntExpr = (index - (index.least + at)) * step + sizes[at]
    for clamped in (
        maximum(least, found),
        minimum(most, found),
        maximum(least, minimum(most, found)),
    ):
        numbers = enumerate(sizes, index.least)
        if all(evaluate(clamped, {str(index): number}) == size for number, size in numbers):
            return clamped
    return None
