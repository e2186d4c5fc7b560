"""The words of the text form: names, strings, numbers, runs of integers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

IDENTIFIER = re.compile(r"[^\W\d]\w*")
"""Mesh axes, factors, roles, keywords."""

VALUE_NAME = re.compile(r"[A-Za-z0-9_./$]+(?:-+[A-Za-z0-9_./$]+)*")
"""What a value may be called without quotes, after `%`."""

KIND = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:(?:\.|::)[A-Za-z0-9_]+)*")
"""What an op or function may be called without quotes."""

STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPE = {escape[1]: char for char, escape in _ESCAPES.items()}
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|(.))", re.DOTALL)


def quote(text: str) -> str:
    """Returns any string in double quotes, without line breaks or unprintable characters."""
    return '"' + "".join(_quoted(char) for char in text) + '"'


def _quoted(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return char if char.isprintable() else f"\\u{{{ord(char):x}}}"


def unquote(text: str) -> str:
    """Returns the string that `quote` put into quotes.

    Raises:
        ValueError: If it has an unknown escape.
    """

    def replace(match: re.Match[str]) -> str:
        code, char = match.groups()
        if code:
            return chr(int(code, 16))
        if char not in _UNESCAPE:
            raise ValueError(f"unknown escape \\{char}")
        return _UNESCAPE[char]

    return _ESCAPE.sub(replace, text[1:-1])


def value_name(name: str) -> str:
    """Returns a reference to a value: `%x`, or `%"any name"`."""
    return f"%{name}" if VALUE_NAME.fullmatch(name) else f"%{quote(name)}"


def word(text: str) -> str:
    """Returns an identifier as it is, and anything else in quotes."""
    return text if IDENTIFIER.fullmatch(text) else quote(text)


def kind(text: str) -> str:
    """Returns the name of an op or function, in quotes where it needs them."""
    return text if KIND.fullmatch(text) else quote(text)


def integers(numbers: Sequence[int]) -> str:
    """Returns `0..3, 8` for 0, 1, 2, 3, 8."""
    return ", ".join(
        f"{first}..{last}" if last - first > 1 else ", ".join(map(str, range(first, last + 1)))
        for first, last in _runs(numbers)
    )


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        yield numbers[at], numbers[end - 1]
        at = end
