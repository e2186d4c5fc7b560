"""Errors a user can cause, and the source locations that they point to.

Every error says what is wrong, where, why, and what to do about it. The command line prints the
message alone; a traceback is reserved for defects of autopar itself.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loc:
    """Where something comes from: a line of the user's code or a node of an ONNX file.

    Attributes:
        file: Source file or model file; empty if unknown.
        line: 1-based line number; 0 if the source has no lines.
        name: Name of the node, module or function within the file; may be empty.
    """

    file: str = ""
    line: int = 0
    name: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.name}" if place and self.name else place or self.name or "?"


UNKNOWN = Loc()

_MOST_NEAR = 3
"""Names that a message suggests at most."""

LONGEST_NAME = 500
"""Characters of names that are compared: it takes quadratic time."""


class AutoparError(Exception):
    """Base of all errors that are caused by input and not by a defect of autopar."""


class InvalidInputError(AutoparError):
    """A model, file, option or run-time input can't be used as given."""


class AnnotationError(AutoparError):
    """A pin, mesh or strategy contradicts the program, itself or another pin."""


class VerificationError(AutoparError):
    """A program violates a rule of the IR. Holds every violation that was found."""

    def __init__(self, title: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join([title, *(f"  - {problem}" for problem in self.problems)]))


class RuntimeFailure(AutoparError):
    """A rank failed while it ran its program."""


_REMEDIES = {
    errno.ENOSPC: "free some, or write to another disk",
    errno.EDQUOT: "free some of what is yours, or write to another disk",
    errno.EFBIG: "the limit of the process (ulimit -f) or of the file system is smaller",
    errno.EROFS: "write to another disk",
}
"""What to do about errors of the system that don't say it themselves."""


def os_reason(error: OSError) -> str:
    """Returns why the system refused something, in words, and what to do about a full disk."""
    if error.errno is None:
        # Libraries raise these without a number.
        return str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno)
    return os.strerror(error.errno) + (f"; {remedy}" if remedy else "")


def near_misses(name: str, known: Iterable[str]) -> str:
    """Returns `"; did you mean a, b?"` for the names closest to `name`, or an empty string."""
    import difflib

    if len(name) > LONGEST_NAME:
        return ""
    names = [other for other in known if len(other) <= LONGEST_NAME]
    close = [other for other in names if other.lower() == name.lower()][:_MOST_NEAR]
    close = close or difflib.get_close_matches(name, names, n=_MOST_NEAR, cutoff=0.5)
    return f"; did you mean {', '.join(close)}?" if close else ""
