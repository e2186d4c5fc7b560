"""Formulas: expressions as code, for those that are evaluated again with every call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from autopar.ir.expr.expression import Binary, Coord, IntExpr, Size

Formula = Callable[[Mapping[str, int]], tuple[int, ...]]
"""Returns numbers, given coordinates and sizes as `evaluate` takes them."""


def formula(exprs: Iterable[IntExpr]) -> Formula:
    """Returns what evaluates expressions together, several times as fast as `evaluate` does.

    Args:
        exprs: The expressions.

    Returns:
        It, which raises a KeyError if it isn't given an axis, or a size, that one of them uses.
    """
    numbers = "".join(f"{_code(expr)}, " for expr in exprs)
    found: Formula = eval(f"lambda known: ({numbers})")
    return found


def _code(expr: IntExpr) -> str:
    """Returns the Python expression that stands for one."""
    if isinstance(expr, (Coord, Size)):
        return f"known[{str(expr)!r}]"
    if not isinstance(expr, Binary):
        return str(expr)
    lhs, rhs = _code(expr.lhs), _code(expr.rhs)
    if expr.op in ("min", "max"):
        return f"{expr.op}({lhs}, {rhs})"
    return f"({lhs} {expr.op} {rhs})"
