"""Pins of chunks by name pattern: `lm_head: 8`, from Python or a command line.

A pattern is a glob over the names of modules and of values. Of a module the cut is taken by which
most of its values are never there as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autopar.base.arguments import COUNT, Kind, expect
from autopar.base.errors import AnnotationError

BY_LIMIT = "memory"
"""The place of pins that no user wrote, as a limit of memory decides."""

PARTS = Kind(COUNT.fits, "a number of parts, a whole one from 2 on")
"""What is asked for; that one part is all of something is said where it is known of what."""

_TEXT = re.compile(r"(.+)=(?:(\d+):)?(\d+)")


@dataclass(frozen=True, slots=True)
class ChunkPin:
    """Into how many parts values are cut over time whose name, or whose module's name, matches.

    Attributes:
        pattern: A glob.
        parts: How many parts.
        dim: The dimension; None for the one by which most is gained.
        place: Where the user wrote it.
    """

    pattern: str
    parts: int
    dim: int | None = None
    place: str = ""

    @classmethod
    def from_entry(cls, pattern: str, entry: int | Sequence[int]) -> ChunkPin:
        """Returns the pin of an entry: a number of parts, or a dimension and that.

        Raises:
            AnnotationError, InvalidInputError: If it is something else.
        """
        place = f"chunks[{pattern!r}]"
        if not isinstance(pattern, str):
            raise AnnotationError(f"{place}: give the name of a module or value, as 'lm_head'")
        if isinstance(entry, (tuple, list)):
            if len(entry) != 2 or not all(type(each) is int and each >= 0 for each in entry):
                raise AnnotationError(
                    f"{place}: {entry!r} is no dimension, counted from 0, and number of parts;"
                    " write (0, 8), or 8"
                )
            dim, parts = entry
            expect(PARTS, **{place: parts})
            return cls(pattern, parts, dim, place)
        expect(PARTS, **{place: entry})
        assert isinstance(entry, int)
        return cls(pattern, entry, None, place)

    @classmethod
    def from_text(cls, text: str) -> ChunkPin:
        """Returns the pin that a command line spells: `lm_head=8`, or `lm_head=0:8`.

        Raises:
            AnnotationError: If it spells none.
        """
        place = f"--chunks {text}"
        found = _TEXT.fullmatch(text)
        if found is None or not int(found[3]):
            raise AnnotationError(f"{place}: write NAME=PARTS or NAME=DIM:PARTS, as lm_head=8")
        dim = None if found[2] is None else int(found[2])
        return cls(found[1], int(found[3]), dim, place)
