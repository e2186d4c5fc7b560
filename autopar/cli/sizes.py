"""Shapes that a command line gives to a model whose dimensions are open."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.base.errors import InvalidInputError


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """Returns the sizes by symbolic dimension that options such as `batch=8` bind.

    Raises:
        InvalidInputError: If an option can't be understood, or contradicts an earlier one.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        name, equals, size = (part.strip() for part in text.rpartition("="))
        if not equals or not name or not _is_size(size):
            raise InvalidInputError(f"--dim {text}: write NAME=SIZE, as batch=8")
        if sizes.setdefault(name, int(size)) != int(size):
            raise InvalidInputError(f"--dim {text} contradicts --dim {name}={sizes[name]}")
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
            raise InvalidInputError(f"--input-shape {text}: write NAME:SIZES, as ids:8,128")
        shape = tuple(map(int, parts))
        if shapes.setdefault(name, shape) != shape:
            earlier = ",".join(map(str, shapes[name]))
            raise InvalidInputError(
                f"--input-shape {text} contradicts --input-shape {name}:{earlier}"
            )
    return shapes


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
