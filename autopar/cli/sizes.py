"""What a command line says of a model's inputs: of open dimensions, shapes, and state."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autopar.base.errors import InvalidInputError
from autopar.ir.expr.ranges import parse_range

_BINDING = re.compile(r"(\s*([^=\s].*?)\s*=\s*([0-9:~]{1,30})\s*(?:,|$))")
"""A dimension's name, which may hold commas and equals signs, and its size or range."""


def parse_dims(texts: Sequence[str]) -> dict[str, str]:
    """Returns what texts such as `batch=8,sequence=1:128` say of symbolic dimensions, by name.

    Raises:
        InvalidInputError: If a text can't be understood, or contradicts an earlier one.
    """
    sizes: dict[str, str] = {}
    for text in texts:
        found = _BINDING.findall(text)
        if not found or "".join(whole for whole, *_ in found) != text or text.endswith(","):
            raise InvalidInputError(f"--dims {text}: write NAME=SIZE, as batch=8,sequence=1:128")
        for _, name, size in found:
            try:
                parse_range(size)
            except ValueError as error:
                raise InvalidInputError(f"--dims {text}: {error}") from error
            if sizes.setdefault(name.strip(), size) != size:
                earlier = f"{name.strip()}={sizes[name.strip()]}"
                raise InvalidInputError(f"--dims {text} contradicts --dims {earlier}")
    return sizes


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes by input that options such as `ids:8,128` give.

    Raises:
        InvalidInputError: If an option can't be understood, or contradicts an earlier one.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        # A name may hold colons, sizes can't.
        name, colon, sizes = (part.strip() for part in text.rpartition(":"))
        parts = [part.strip() for part in sizes.split(",")] if sizes else []
        if not colon or not name or not all(map(_is_size, parts)):
            raise InvalidInputError(f"--input-shapes {text}: write NAME:SIZES, as ids:8,128")
        shape = tuple(map(int, parts))
        if shapes.setdefault(name, shape) != shape:
            earlier = ",".join(map(str, shapes[name]))
            raise InvalidInputError(
                f"--input-shapes {text} contradicts --input-shapes {name}:{earlier}"
            )
    return shapes


def parse_state(texts: Sequence[str]) -> dict[str, str]:
    """Returns the outputs by input that options such as `past.*=present.*` connect.

    Raises:
        InvalidInputError: If an option can't be understood, or contradicts an earlier one.
    """
    state: dict[str, str] = {}
    for text in texts:
        given, _, returned = (part.strip() for part in text.partition("="))
        if not given or not returned:
            raise InvalidInputError(f"--state {text}: write INPUT=OUTPUT, as 'past.*=present.*'")
        if state.setdefault(given, returned) != returned:
            raise InvalidInputError(f"--state {text} contradicts --state {given}={state[given]}")
    return state


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
