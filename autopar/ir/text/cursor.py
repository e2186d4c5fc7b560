"""A position in a text that is being parsed, and errors that show it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeVar

from autopar.base.errors import InvalidInputError, near_misses
from autopar.ir.expr.expression import IntExpr, Size
from autopar.ir.expr.parse import ExprSyntaxError, parse_prefix
from autopar.ir.text.words import IDENTIFIER, STRING, unquote

Item = TypeVar("Item")

MAX_NESTING = 100

_SKIPPED = re.compile(r"(?:\s+|#[^\n]*)*")
_CULPRIT = re.compile(r'"(?:[^"\\\n]|\\.)*"?|[%$]?[\w.]+|->|\S')
_INTEGER = re.compile(r"-?[0-9]{1,4000}")


class TextError(InvalidInputError):
    """The text form of a program can't be parsed.

    Attributes:
        what: What is wrong, without the place.
        line: 1-based line number.
        column: 1-based column number.
    """

    def __init__(self, message: str, source: str, text: str, start: int, end: int) -> None:
        self.what = message
        self.line = text.count("\n", 0, start) + 1
        begin = text.rfind("\n", 0, start) + 1
        self.column = start - begin + 1
        shown = text[begin:].split("\n", 1)[0]
        # Tabs stay tabs, so that the marker stands below the culprit in any terminal.
        indent = "".join(char if char == "\t" else " " for char in shown[: self.column - 1])
        marker = "^" * max(1, min(end - start, len(shown) - len(indent)))
        place = f"{source}, line {self.line}, column {self.column}"
        super().__init__(f"{place}: {message}\n  {shown}\n  {indent}{marker}")


class Cursor:
    """Reads tokens from a text. White space and `# comments` between them mean nothing.

    Attributes:
        at: The position.
        sizes: The open sizes that have been declared, by name.
    """

    def __init__(self, text: str, source: str) -> None:
        self.at = 0
        self.sizes: dict[str, Size] = {}
        self._text = text
        self._source = source
        self._nesting = 0
        self._skip()

    def _skip(self) -> None:
        match = _SKIPPED.match(self._text, self.at)
        self.at = match.end() if match else self.at

    def at_end(self) -> bool:
        """Returns whether nothing is left."""
        return self.at == len(self._text)

    def looking_at(self, pattern: re.Pattern[str]) -> bool:
        """Returns whether a pattern matches here."""
        return pattern.match(self._text, self.at) is not None

    def opens_group(self, inside: str, behind: str) -> bool:
        """Returns whether a parenthesis opens here that has marks directly inside, or behind it.

        Args:
            inside: A mark that tells such a group, in no further parentheses.
            behind: A mark that tells it by standing next behind the closing parenthesis.
        """
        if not self._text.startswith("(", self.at):
            return False
        depth = 0
        for at in range(self.at, len(self._text)):
            mark = self._text[at]
            depth += (mark == "(") - (mark == ")")
            if mark == inside and depth == 1:
                return True
            if depth == 0:
                return self._text[at + 1 :].lstrip().startswith(behind)
        return False

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Reads what a pattern matches here, if it does."""
        match = pattern.match(self._text, self.at)
        if match is None:
            return None
        self.at = match.end()
        self._skip()
        return match[0]

    def expect_match(self, pattern: re.Pattern[str], expected: str) -> str:
        """Reads what a pattern matches here."""
        found = self.match(pattern)
        return self.fail_expecting(expected) if found is None else found

    def sign(self, sign: str) -> bool:
        """Reads a punctuation mark if it is next."""
        if not self._text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        self._skip()
        return True

    def expect(self, sign: str, *others: str) -> None:
        """Reads a punctuation mark. `others` are what could have come too, for the message."""
        if not self.sign(sign):
            self.fail_expecting(" or ".join(map(repr, (*others, sign))))

    def keyword(self, word: str) -> bool:
        """Reads an identifier if it is this one."""
        match = IDENTIFIER.match(self._text, self.at)
        if match is None or match[0] != word:
            return False
        self.match(IDENTIFIER)
        return True

    def identifier(self, expected: str) -> str:
        """Reads an identifier."""
        return self.expect_match(IDENTIFIER, expected)

    def word(self, expected: str) -> str:
        """Reads an identifier, or a string where a word has other characters."""
        return self.named(IDENTIFIER, expected)

    def named(self, pattern: re.Pattern[str], expected: str) -> str:
        """Reads a name that follows a pattern, or a string where it has other characters."""
        return (
            self.string(expected)
            if self.looking_at(_QUOTE)
            else self.expect_match(pattern, expected)
        )

    def string(self, expected: str = "a string") -> str:
        """Reads a quoted string."""
        start = self.at
        if self.looking_at(_QUOTE) and not self.looking_at(STRING):
            self.fail("a string has no closing quote on its line", start)
        text = self.expect_match(STRING, expected)
        try:
            return unquote(text)
        except (ValueError, OverflowError) as error:
            self.fail(str(error), start)

    def integer(self, expected: str = "an integer") -> int:
        """Reads an integer."""
        return int(self.expect_match(_INTEGER, expected))

    def expr(self) -> IntExpr:
        """Reads an expression."""
        try:
            expr, self.at = parse_prefix(self._text, self.at, self.sizes)
        except ExprSyntaxError as error:
            self.at = error.position
            self._skip()
            self.fail_expecting(error.expected)
        self._skip()
        return expr

    def listed(self, item: Callable[[], Item], close: str) -> tuple[Item, ...]:
        """Reads items with commas between them, up to and with a closing mark."""
        items: list[Item] = []
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            self.fail(f"nested more than {MAX_NESTING} levels deep")
        while not self.sign(close):
            items.append(item())
            if not self.sign(","):
                self.expect(close, ",")
                break
        self._nesting -= 1
        return tuple(items)

    def one_of(self, word: str, known: Iterable[str], what: str, start: int) -> str:
        """Returns a word that was read at `start` if it is known, and fails otherwise."""
        known = tuple(known)
        if word not in known:
            self.fail(f"unknown {what} {word!r}{near_misses(word, known)}", start)
        return word

    def fail_expecting(self, expected: str) -> NoReturn:
        """Raises an error that says what should have come here."""
        match = _CULPRIT.match(self._text, self.at)
        got = match[0] if match else "the end of the text"
        self.fail(f"expected {expected}, got {got}", self.at)

    def fail(self, message: str, start: int | None = None) -> NoReturn:
        """Raises an error about what stands at `start`."""
        start = self.at if start is None else start
        match = _CULPRIT.match(self._text, start)
        end = match.end() if match else start
        raise TextError(message, self._source, self._text, start, end)


_QUOTE = re.compile('"')
