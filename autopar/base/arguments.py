"""Arguments that Python callers give: of which kind they must be, and what else is said of them.

    expect(PATH, build=build)
    expect(FLAG, updates=updates, torch_compile=torch_compile)
    expect(PATH.or_none, resume=resume)

Types alone are looked at; what a path or number means is up to who uses it.
"""

from __future__ import annotations

import math
import numbers
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.base.errors import InvalidInputError, near_misses

LONGEST_NAME = 255
"""Bytes of the name of a file or folder: no file system has longer ones."""
_LONGEST = 60
"""Characters of a value that a message shows."""
_WORDS = (str, bytes, int, float, type(None), os.PathLike)
_PLAIN = (*_WORDS, list, tuple, dict, set)
"""Types whose values tell more than their names."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What an argument must be.

    Attributes:
        fits: Whether a value is such.
        words: What to give instead of one that isn't.
        names: Of which a text is to be one.
    """

    fits: Callable[[object], bool]
    words: str
    names: tuple[str, ...] = ()

    @property
    def or_none(self) -> Kind:
        """The same, or None."""
        return replace(self, fits=lambda value: value is None or self.fits(value))


def expect(kind: Kind, /, **given: object) -> None:
    """Refuses arguments of another kind.

    Args:
        kind: What they must be.
        given: The arguments by name.

    Raises:
        InvalidInputError: If one isn't; names it, and what to give.
    """
    for name, value in given.items():
        if not kind.fits(value):
            near = near_misses(value, kind.names) if isinstance(value, str) else ""
            raise InvalidInputError(f"{name}={shown(value)}: give {kind.words}{near}")


def shown(value: object) -> str:
    """Returns a value as a message shows it: itself if it is short, else what it is."""
    if isinstance(value, _PLAIN):
        text = repr(value) if isinstance(value, _WORDS) else reprlib.repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"<{type(value).__name__}>"


def one_of(*types: type, words: str) -> Kind:
    """Returns the kind of the instances of some types; True and False are no numbers.

    Args:
        types: The types.
        words: See `Kind`.
    """
    return Kind(lambda value: isinstance(value, types) and not _is_stray_flag(value, types), words)


def one_name(names: Sequence[str]) -> Kind:
    """Returns the kind of a text that is one of some names."""
    return Kind(
        lambda value: isinstance(value, str) and value in names,
        " or ".join(map(repr, names)),
        tuple(names),
    )


def _is_stray_flag(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, bool) and bool not in types and object not in types


def _is_path(value: object) -> bool:
    if not isinstance(value, (str, os.PathLike)):
        return False
    text = os.fspath(value)
    if not isinstance(text, str) or not text or "\0" in text:
        return False
    return all(len(os.fsencode(part)) <= LONGEST_NAME for part in text.split(os.sep))


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_positive(value: object) -> bool:
    return _is_number(value) and 0 < value < math.inf  # type: ignore[operator]


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


PATH = Kind(_is_path, "a path, as 'folder/file'")
FLAG = one_of(bool, words="True or False")
WHOLE = Kind(_is_whole, "a whole number")
NATURAL = Kind(lambda value: _is_whole(value) and value >= 0, "a whole number from 0 on")  # type: ignore[operator]
COUNT = Kind(lambda value: _is_whole(value) and value >= 1, "a whole number from 1 on")  # type: ignore[operator]
SECONDS = Kind(_is_positive, "a number of seconds above 0")
POSITIVE = Kind(_is_positive, "a number above 0")
TEXT = one_of(str, words="a text")
MAPPING = one_of(Mapping, words="a dict")
NAMES = Kind(
    lambda value: isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value),
    "a list of names",
)
CALLABLE = Kind(callable, "a function")
