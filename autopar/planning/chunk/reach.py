"""Reaches: which elements iterations have of a dimension, with the halo that windows read.

Iterations share a dimension in blocks, as processes do. What reads it through windows needs more
than the block: the halo, which belongs to other iterations too. All iterations have as many
elements, all of which exist: near a border they begin earlier, or later, than elsewhere:

    Reach(step=8, offset=-1, low=0, high=54, length=10)    of 64: 0 to 10, 7 to 17, ..., 54 to 64
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from autopar.ir.expr.expression import Coord, IntExpr, maximum, minimum
from autopar.ir.rules.window import Window


class Reach(NamedTuple):
    """Which elements iterations have of a dimension.

    Attributes:
        step: From the first element of an iteration to that of the next one.
        offset: The first element of iteration 0, were there no border.
        low: Before this one, no iteration begins.
        high: Behind this one, none does.
        length: How many each has.
    """

    step: int
    offset: int
    low: int
    high: int
    length: int

    @classmethod
    def of_blocks(cls, inner: int, block: int, length: int) -> Reach:
        """Returns what iterations have that share a dimension.

        Args:
            inner: Its elements.
            block: How many an iteration has.
            length: How many those in question have: a block, or what is left.
        """
        return cls(block, 0, 0, inner - length, length)

    @classmethod
    def of_open(cls, start: IntExpr, length: IntExpr) -> Reach:
        """Returns what iterations have of a size that is open: it is only compared with others."""
        return cls(0, cast(int, start), 0, 0, cast(int, length))

    def start(self, iteration: int) -> int:
        """Returns the first element of an iteration."""
        return min(max(iteration * self.step + self.offset, self.low), self.high)

    def start_in(self, loop: str) -> IntExpr:
        """Returns the first element as an expression of the iteration of a loop."""
        return minimum(maximum(Coord(loop) * self.step + self.offset, self.low), self.high)

    def is_same(self, other: Reach, iterations: Sequence[int]) -> bool:
        """Whether iterations have the same elements."""
        if self == other:
            return True
        return self.length == other.length and all(
            self.start(each) == other.start(each) for each in iterations
        )

    def joined(self, other: Reach, inner: int) -> Reach:
        """Returns what covers this and another reach of a dimension.

        Args:
            other: It has the same step.
            inner: The elements of the dimension.
        """
        both = self, other
        offset, low, high = (min(each[at] for each in both) for at in (1, 2, 3))
        ends = (max(each[at] + each.length for each in both) for at in (1, 2, 3))
        most = max(end - first for end, first in zip(ends, (offset, low, high), strict=True))
        return Reach(self.step, offset, low, high, most).within(inner)

    def within(self, inner: int) -> Reach:
        """Returns what covers the part of it that exists, of so many elements."""
        length = min(self.length, inner)
        low, high = (min(max(each, 0), inner - length) for each in (self.low, self.high))
        return Reach(self.step, self.offset, low, high, length)

    def read(self, window: Window) -> Reach:
        """Returns what windows read, those of these elements; it may lie beyond the border."""
        assert isinstance(window.start, int)
        stride, start = window.stride, window.start
        offset, low, high = (each * stride + start for each in self[1:4])
        return Reach(self.step * stride, offset, low, high, window.span(self.length))

    def times(self, minor: int) -> Reach:
        """Returns it in elements of which `minor` make one of these."""
        return Reach(*(each * minor for each in self))

    def over(self, minor: int) -> Reach:
        """Returns what covers it in elements that each consist of `minor` of these."""
        firsts = self.offset // minor, self.low // minor, self.high // minor
        ends = (-(-(each + self.length) // minor) for each in self[1:4])
        length = max(end - first for end, first in zip(ends, firsts, strict=True))
        return Reach(self.step // minor, *firsts, length)
