"""Windows: a part of one index range that a part of another needs.

A convolution's output rows [a, b) need the input rows [a * stride + start, (b - 1) * stride +
start + length). So do pooling, slices, pads, rolls and flips.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from autopar.ir.expr.expression import IntExpr, maximum, minimum

Fill = bool | int | float | str
"""What stands outside of the range: a number, or a word.

`least` is the identity of max; `wrap`, `edge` and `reflect` continue the range as a circle, with
its last element, or mirrored there; with `none` windows end where the range does."""


@dataclass(frozen=True, slots=True)
class Window:
    """How a factor of an operand is read along a factor of the results.

    Index `y` of the results reads `length` elements from `y * stride + start` on; consecutive
    indices read everything from the first of these elements to the last.

    Attributes:
        of: The factor of the results.
        stride: From one index to the next; negative if the operand is read backwards.
        start: Of index 0; may lie outside of the range, and depend on open sizes.
        length: Elements per index.
        fill: What stands outside of the range.
    """

    of: str
    stride: int = 1
    start: IntExpr = 0
    length: int = 1
    fill: Fill = 0

    def span(self, count: int) -> int:
        """Returns how many elements `count` consecutive indices read, those outside included."""
        return (count - 1) * abs(self.stride) + self.length if count else 0

    def extent(self, first: IntExpr, count: IntExpr, size: IntExpr) -> tuple[IntExpr, IntExpr]:
        """Returns (first element, number of elements) that consecutive indices read.

        Args:
            first: The first index.
            count: How many indices; without any, nothing is read.
            size: Of the range that is read; where the fill is `none`, windows end with it.
        """
        edge = first if self.stride > 0 else first + count - 1
        low = edge * self.stride + self.start
        if self.fill != "none":
            return low, self._span(count)
        low, high = (maximum(0, minimum(end, size)) for end in (low, low + self._span(count)))
        return low, high - low

    def _span(self, count: IntExpr) -> IntExpr:
        if isinstance(count, int):
            return self.span(count)
        stride = abs(self.stride)
        return count * stride + minimum(count, 1) * (self.length - stride)


class Piece(NamedTuple):
    """Elements that stand side by side in a window.

    Attributes:
        start: The first one.
        length: How many.
        step: 1; -1 if they are read backwards, 0 if `start` is repeated, None if they are filled.
    """

    start: int
    length: int
    step: int | None

    @property
    def extent(self) -> tuple[int, int]:
        """First and number of the elements in the range's own order, each once."""
        if self.step == -1:
            return self.start - self.length + 1, self.length
        return self.start, self.length if self.step else 1


def pieces(low: int, high: int, size: int, fill: Fill) -> Iterator[Piece]:
    """Yields what the indices [low, high) of a range of `size` elements stand for, in order."""
    if fill == "none":
        low, high = min(max(low, 0), size), min(max(high, 0), size)
    while low < high:
        piece = _piece(low, high, size, fill)
        yield piece
        low += piece.length


def _piece(low: int, high: int, size: int, fill: Fill) -> Piece:
    if 0 <= low < size:
        return Piece(low, min(high, size) - low, 1)
    if fill == "wrap" and size:
        start = low % size
        return Piece(start, min(high - low, size - start), 1)
    end = min(high, 0) if low < 0 else high
    if fill == "edge" and size:
        return Piece(0 if low < 0 else size - 1, end - low, 0)
    if fill == "reflect" and size:
        return Piece(-low if low < 0 else 2 * (size - 1) - low, end - low, -1)
    return Piece(0, end - low, None)
