"""Rank expressions on all ranks at once, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from autopar.ir.expr.expression import Binary, Coord, IntExpr

Ints = npt.NDArray[np.int64]

_ARRAY_OPS: Mapping[str, Callable[[Ints, Ints], Ints]] = {
    "+": np.add,
    "*": np.multiply,
    "//": np.floor_divide,
    "min": np.minimum,
    "max": np.maximum,
}


def evaluate_on_ranks(expr: IntExpr, coords: Mapping[str, Ints]) -> Ints:
    """Returns the value of a rank expression on every rank, a constant as an array of one element.

    Args:
        expr: The expression.
        coords: Every rank's coordinate, by axis.

    Raises:
        KeyError: If the expression uses an axis that `coords` lacks.
    """
    if isinstance(expr, int):
        return np.full(1, expr, np.int64)
    if isinstance(expr, Coord):
        return coords[expr.axis]
    if isinstance(expr, Binary):
        lhs, rhs = (evaluate_on_ranks(side, coords) for side in (expr.lhs, expr.rhs))
        return _ARRAY_OPS[expr.op](lhs, rhs)
    raise TypeError(f"not a rank expression: {expr!r}")
