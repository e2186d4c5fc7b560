"""Expressions of open sizes on all ranks at once, as arrays of numbers that stand for them.

At the coordinates of a rank an expression becomes one of open sizes alone, in the form in which
equal ones look the same. Each of these gets a number of its own, far below all sizes. So whether
two arrays are equal says whether ranks agree, whatever the sizes are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from autopar.ir.dims import block_of
from autopar.ir.expr.arrays import Ints
from autopar.ir.expr.expression import FOLD, Binary, Expr, IntExpr, axes_of, substitute, terms_of

_FIRST = -(2**62)
_LAST = _FIRST + 2**32


class OpenValues:
    """Numbers expressions."""

    def __init__(self) -> None:
        self._numbers: dict[Expr, int] = {}
        self._settled: dict[Expr, int] = {}
        self._exprs: list[Expr] = []

    def number(self, expr: IntExpr) -> int:
        """Returns the number that stands for an expression; a number is itself."""
        if isinstance(expr, int):
            return expr
        found = self._numbers.get(expr)
        if found is None:
            found = self._numbers[expr] = self._number(_settled(expr))
        return found

    def _number(self, expr: IntExpr) -> int:
        if isinstance(expr, int):
            return expr
        if expr not in self._settled:
            self._settled[expr] = _FIRST + len(self._exprs)
            self._exprs.append(expr)
        return self._settled[expr]

    def expr(self, number: int) -> IntExpr:
        """Returns what a number stands for."""
        return self._exprs[number - _FIRST] if number < _LAST else number

    def on_ranks(self, expr: IntExpr, coords: Mapping[str, Ints]) -> Ints:
        """Returns the value of an expression on every rank; of one element if all have the same.

        Args:
            expr: The expression, which depends on open sizes.
            coords: Every rank's coordinate, by axis.

        Raises:
            KeyError: If the expression uses an axis that `coords` lacks.
        """
        axes = sorted(axes_of(expr))
        if not axes:
            return np.full(1, self.number(expr), np.int64)

        def at(*point: int) -> IntExpr:
            return substitute(expr, dict(zip(axes, point, strict=True)))

        return self._each(at, [coords[axis] for axis in axes])

    def blocks(self, size: Ints, count: Ints, position: Ints) -> Ints:
        """Returns blocks of dimensions: of so many parts the one at this position, of each rank."""
        return self.computed(block_of, (size,), (count, position))

    def computed(
        self, compute: Callable[..., IntExpr], sizes: Sequence[Ints], numbers: Sequence[Ints]
    ) -> Ints:
        """Returns what is computed of sizes that may be open, and of numbers, of each rank."""

        def one(*row: int) -> IntExpr:
            exprs = map(self.expr, row[: len(sizes)])
            return compute(*exprs, *row[len(sizes) :])

        return self._each(one, np.broadcast_arrays(*sizes, *numbers))

    def _each(self, compute: Callable[..., IntExpr], columns: Sequence[Ints]) -> Ints:
        """Returns what is computed of each row, once for equal ones."""
        rows, index = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        found = [self.number(compute(*map(int, row))) for row in rows]
        return np.asarray(found, np.int64)[index.reshape(-1)]


def _settled(expr: IntExpr) -> IntExpr:
    """Returns an expression with common divisors outside of its minima and maxima.

    Blocks of pairs are as large as twice the blocks: `min(2 * b, 2 * n)` is `min(b, n) * 2`.
    """
    if not isinstance(expr, Binary):
        return expr
    sides = _settled(expr.lhs), _settled(expr.rhs)
    if expr.op not in ("min", "max"):
        return FOLD[expr.op](*sides)
    divisor = math.gcd(*(factor for side in sides for factor in terms_of(side).values()))
    if divisor > 1:
        sides = sides[0] // divisor, sides[1] // divisor
    return FOLD[expr.op](*sides) * max(1, divisor)


def has_open(values: Ints) -> bool:
    """Returns whether some values stand for expressions."""
    return bool((values < _LAST).any())
