"""Expressions as text: the inverse of `str`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from autopar.ir.expr.expression import Binary, Coord, IntExpr, Size, add, multiply


class ExprSyntaxError(ValueError):
    """Text is not a rank expression: at `position`, `expected` was expected."""

    def __init__(self, position: int, expected: str) -> None:
        super().__init__(f"expected {expected} at position {position}")
        self.position = position
        self.expected = expected


def parse(text: str, sizes: Mapping[str, Size] | None = None) -> IntExpr:
    """Parses what `str` of an expression prints.

    Also takes subtraction, and min and max of more than two operands.

    Args:
        text: The text.
        sizes: The sizes that are open, by name; none by default.

    Raises:
        ValueError: If `text` is not a rank expression.
    """
    try:
        expr, end = parse_prefix(text, sizes=sizes)
        if rest := text[end:].lstrip():
            raise ExprSyntaxError(len(text) - len(rest), "an operator or the end")
    except ExprSyntaxError as error:
        raise ValueError(f"not a rank expression: {text!r}: {error}") from error
    return expr


def parse_prefix(
    text: str, start: int = 0, sizes: Mapping[str, Size] | None = None
) -> tuple[IntExpr, int]:
    """Parses the longest rank expression that begins at `start`; arguments as `parse`.

    Returns:
        The expression and the position behind it.

    Raises:
        ExprSyntaxError: If there is none.
    """
    parser = _Parser(text, start, sizes or {})
    return parser.sum(), parser.at


_TOKEN = re.compile(r"\s*(?:(?P<int>[0-9]{1,4000})|(?P<name>\$?[^\W\d]\w*)|(?P<sign>//|[-+*(),]))")
_MAX_NESTING = 100


class _Parser:
    """Recursive descent. `at` is the end of what has been parsed."""

    def __init__(self, text: str, at: int, sizes: Mapping[str, Size]) -> None:
        self.at = at
        self._text = text
        self._sizes = sizes
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
        if (name := match["name"]) and name[0] == "$" and name[1:] not in self._sizes:
            raise self._error("an open size that is declared")
        self.at = match.end()
        if match["int"]:
            return int(match["int"])
        if name[0] == "$":
            return self._sizes[name[1:]]
        if name in ("min", "max"):
            self._expect("(")
            return self._nested(lambda: self._operands(name), ")")
        return Coord(name)

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
