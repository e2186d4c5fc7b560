"""Rank expressions: integers that depend on a rank's coordinates in the mesh.

Ranks share one program. Where a size, an offset or a bound differs between them, the program
holds an expression of mesh coordinates, which is resolved when a rank loads its program. So the
size of a program, and the time to compile it, don't grow with the number of ranks.

    >>> size = maximum(0, minimum(3, 8 - 3 * Coord("tp")))
    >>> str(size)
    'max(0, min(3, tp * -3 + 8))'
    >>> [evaluate(size, {"tp": rank}) for rank in range(4)]
    [3, 3, 2, 0]
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass


class Expr:
    """An integer expression of mesh coordinates, built with operators and the functions below."""

    __slots__ = ()

    def __add__(self, other: IntExpr) -> IntExpr:
        return add(self, other)

    def __radd__(self, other: IntExpr) -> IntExpr:
        return add(other, self)

    def __sub__(self, other: IntExpr) -> IntExpr:
        return add(self, multiply(other, -1))

    def __rsub__(self, other: IntExpr) -> IntExpr:
        return add(other, multiply(self, -1))

    def __mul__(self, other: IntExpr) -> IntExpr:
        return multiply(self, other)

    def __rmul__(self, other: IntExpr) -> IntExpr:
        return multiply(other, self)

    def __floordiv__(self, other: IntExpr) -> IntExpr:
        return floordiv(self, other)


IntExpr = int | Expr


@dataclass(frozen=True, slots=True)
class Coord(Expr):
    """The rank's coordinate along the mesh axis `axis`, from 0."""

    axis: str

    def __str__(self) -> str:
        return self.axis


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """`op` applied to two operands; `op` is one of `+ * // min max`."""

    op: str
    lhs: IntExpr
    rhs: IntExpr

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.lhs}, {self.rhs})"
        return f"{self._operand(self.lhs)} {self.op} {self._operand(self.rhs, right=True)}"

    def _operand(self, side: IntExpr, right: bool = False) -> str:
        if not isinstance(side, Binary) or side.op in ("min", "max"):
            return str(side)
        loose = right or _PRECEDENCE[side.op] < _PRECEDENCE[self.op]
        return f"({side})" if loose else str(side)


_PRECEDENCE = {"+": 1, "*": 2, "//": 2}
_EVALUATE: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "min": min,
    "max": max,
}


def add(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns `lhs + rhs`, constants folded and kept on the right."""
    if isinstance(lhs, int):
        if isinstance(rhs, int):
            return lhs + rhs
        lhs, rhs = rhs, lhs
    if rhs == 0:
        return lhs
    if isinstance(lhs, Binary) and lhs.op == "+" and isinstance(rhs, int):
        constant = lhs.rhs
        if isinstance(constant, int):
            return add(lhs.lhs, constant + rhs)
    return Binary("+", lhs, rhs)


def multiply(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns `lhs * rhs`, constants folded and kept on the right."""
    if isinstance(lhs, int):
        if isinstance(rhs, int):
            return lhs * rhs
        lhs, rhs = rhs, lhs
    if isinstance(rhs, int):
        if rhs in (0, 1):
            return lhs if rhs else 0
        if isinstance(lhs, Binary) and isinstance(lhs.rhs, int) and lhs.op in ("*", "+"):
            inner = multiply(lhs.lhs, rhs)
            return multiply(lhs.lhs, lhs.rhs * rhs) if lhs.op == "*" else add(inner, lhs.rhs * rhs)
    return Binary("*", lhs, rhs)


def floordiv(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns `lhs // rhs`, rounded towards minus infinity."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return lhs // rhs
    return lhs if rhs == 1 else Binary("//", lhs, rhs)


def minimum(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns the smaller of two expressions."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return min(lhs, rhs)
    return lhs if lhs == rhs else Binary("min", lhs, rhs)


def maximum(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns the larger of two expressions."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return max(lhs, rhs)
    return lhs if lhs == rhs else Binary("max", lhs, rhs)


def evaluate(expr: IntExpr, coords: Mapping[str, int]) -> int:
    """Returns the value of `expr` on the rank with these mesh coordinates.

    Raises:
        KeyError: If `coords` lacks an axis that `expr` uses.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, Coord):
        return coords[expr.axis]
    if isinstance(expr, Binary):
        return _EVALUATE[expr.op](evaluate(expr.lhs, coords), evaluate(expr.rhs, coords))
    raise TypeError(f"not a rank expression: {expr!r}")


def axes_of(expr: IntExpr) -> frozenset[str]:
    """Returns the mesh axes on which `expr` depends."""
    if isinstance(expr, Coord):
        return frozenset((expr.axis,))
    if isinstance(expr, Binary):
        return axes_of(expr.lhs) | axes_of(expr.rhs)
    return frozenset()


def parse(text: str) -> IntExpr:
    """Parses what `str` of an expression prints.

    Raises:
        ValueError: If `text` is not a rank expression.
    """
    try:
        return _from_ast(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, KeyError, RecursionError) as error:
        raise ValueError(f"not a rank expression: {text!r}") from error


_AST_OPS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Mult: "*", ast.FloorDiv: "//"}


def _from_ast(node: ast.expr) -> IntExpr:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _from_ast(node.operand)
        if isinstance(operand, int):
            return -operand
    if isinstance(node, ast.Name):
        return Coord(node.id)
    if isinstance(node, ast.BinOp):
        return Binary(_AST_OPS[type(node.op)], _from_ast(node.left), _from_ast(node.right))
    if isinstance(node, ast.Call) and len(node.args) == 2:
        name = ast.unparse(node.func)
        if name in ("min", "max"):
            return Binary(name, _from_ast(node.args[0]), _from_ast(node.args[1]))
    raise ValueError(f"not a rank expression: {ast.unparse(node)!r}")
