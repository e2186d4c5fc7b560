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

import re
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
        # Operators group from the left, so on the right equal precedence needs parentheses too.
        loose = _PRECEDENCE[side.op] - _PRECEDENCE[self.op] < (1 if right else 0)
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


class FromFirst(dict[str, int]):
    """Coordinates, 0 along every axis that they don't name: by default those of the first rank."""

    def __missing__(self, axis: str) -> int:
        """Returns 0."""
        return 0


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


class ExprSyntaxError(ValueError):
    """Text is not a rank expression: at `position`, `expected` was expected."""

    def __init__(self, position: int, expected: str) -> None:
        super().__init__(f"expected {expected} at position {position}")
        self.position = position
        self.expected = expected


def parse(text: str) -> IntExpr:
    """Parses what `str` of an expression prints.

    Also takes subtraction, and min and max of more than two operands.

    Raises:
        ValueError: If `text` is not a rank expression.
    """
    try:
        expr, end = parse_prefix(text)
        if rest := text[end:].lstrip():
            raise ExprSyntaxError(len(text) - len(rest), "an operator or the end")
    except ExprSyntaxError as error:
        raise ValueError(f"not a rank expression: {text!r}: {error}") from error
    return expr


def parse_prefix(text: str, start: int = 0) -> tuple[IntExpr, int]:
    """Parses the longest rank expression that begins at `start`.

    Returns:
        The expression and the position behind it.

    Raises:
        ExprSyntaxError: If there is none.
    """
    parser = _Parser(text, start)
    return parser.sum(), parser.at


_TOKEN = re.compile(r"\s*(?:(?P<int>[0-9]{1,4000})|(?P<name>[^\W\d]\w*)|(?P<sign>//|[-+*(),]))")
_MAX_NESTING = 100


class _Parser:
    """Recursive descent. `at` is the end of what has been parsed."""

    def __init__(self, text: str, at: int) -> None:
        self.at = at
        self._text = text
        self._nesting = 0

    def sum(self) -> IntExpr:
        expr = self._product()
        while sign := self._accept("+", "-"):
            operand = self._product()
            # Only `+` is ever printed, and must come back as it was; `-` is for people.
            minus = sign == "-"
            expr = add(expr, multiply(operand, -1)) if minus else Binary("+", expr, operand)
        return expr

    def _product(self) -> IntExpr:
        expr = self._atom()
        while sign := self._accept("*", "//"):
            expr = Binary(sign, expr, self._atom())
        return expr

    def _atom(self) -> IntExpr:
        if self._accept("-"):
            return multiply(self._nested(self._atom), -1)
        if self._accept("("):
            return self._nested(self.sum, ")")
        match = _TOKEN.match(self._text, self.at)
        if match is None or match["sign"]:
            raise self._error("a number, a mesh axis, min, max or '('")
        self.at = match.end()
        if match["int"]:
            return int(match["int"])
        if match["name"] in ("min", "max"):
            self._expect("(")
            name: str = match["name"]
            return self._nested(lambda: self._operands(name), ")")
        return Coord(match["name"])

    def _operands(self, op: str) -> IntExpr:
        expr = self.sum()
        self._expect(",")
        expr = Binary(op, expr, self.sum())
        while self._accept(","):
            expr = Binary(op, expr, self.sum())
        return expr

    def _nested(self, parse: Callable[[], IntExpr], close: str = "") -> IntExpr:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise self._error(f"at most {_MAX_NESTING} levels of nesting")
        expr = parse()
        if close:
            self._expect(close)
        self._nesting -= 1
        return expr

    def _accept(self, *signs: str) -> str | None:
        match = _TOKEN.match(self._text, self.at)
        if match is None or match["sign"] not in signs:
            return None
        self.at = match.end()
        sign: str = match["sign"]
        return sign

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            raise self._error(repr(sign))

    def _error(self, expected: str) -> ExprSyntaxError:
        rest = self._text[self.at :]
        return ExprSyntaxError(self.at + len(rest) - len(rest.lstrip()), expected)
