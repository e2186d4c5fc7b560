"""A rank's piece as rectangles of the whole tensor.

A piece is one block of each sub-dimension, so along a dimension it may be several intervals: of a
fused query, key and value it is a part of each. Formats outside autopar know rectangles only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from autopar.runtime.ports.boxes import Box, Extent


class Interval(NamedTuple):
    """`length` elements of a dimension: from `start` on in the whole, from `at` on in a piece."""

    start: int
    length: int
    at: int


class Region(NamedTuple):
    """A rectangle of a whole tensor that a piece holds.

    Attributes:
        offsets: Where it begins in the whole tensor, per dimension.
        sizes: Its shape.
        at: Where it begins in the piece, per dimension.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    at: tuple[int, ...]

    def of(self, piece: Tensor) -> Tensor:
        """Returns a view of the rectangle within the piece."""
        for dim, (start, length) in enumerate(zip(self.at, self.sizes, strict=True)):
            piece = piece.narrow(dim, start, length)
        return piece


def regions(box: Box) -> list[Region]:
    """Returns the fewest rectangles that make up the piece; none if it is empty."""
    found = []
    for intervals in itertools.product(*map(_intervals, box)):
        starts, lengths, places = zip(*intervals, strict=True) if intervals else ((), (), ())
        found.append(Region(starts, lengths, places))
    return [region for region in found if 0 not in region.sizes]


def _intervals(dim: Sequence[Extent]) -> list[Interval]:
    """Returns the intervals of a dimension, in order, those that touch as one."""
    found, size = [(0, 1)], 1
    for extent in reversed(dim):
        if found == [(0, size)]:
            found = [(extent.start * size, extent.length * size)]
        else:
            rows = range(extent.start, extent.start + extent.length)
            found = [(row * size + start, length) for row in rows for start, length in found]
        size *= extent.size
    places = itertools.accumulate((length for _, length in found), initial=0)
    return [Interval(start, length, at) for (start, length), at in zip(found, places, strict=False)]
