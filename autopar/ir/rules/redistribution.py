"""From blocks of one range to windows of another's blocks: who gets what from whom.

What a member needs and doesn't hold is the halo, however far away it lies. All of this is
arithmetic on a few integers, the same for every member, so nothing grows with their number. Where
sizes are open, they are expressions, and what is decided by them holds for every size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autopar.base.errors import InvalidInputError
from autopar.ir.dims import block_extent, block_size
from autopar.ir.expr.expression import Expr, IntExpr
from autopar.ir.expr.facts import is_at_least
from autopar.ir.program import Arg
from autopar.ir.rules.numbering import PLAIN, Numbering
from autopar.ir.rules.window import Piece, Window, pieces

CONTINUED = ("wrap", "edge", "reflect")
"""Fills that are elements of the range, which some member holds."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """From blocks of one range to the windows of another's blocks, at any sizes.

    Where it isn't sure that something is so for every size and member, it answers that it isn't.

    Attributes:
        size: Of the range that is held.
        block: Elements of it that a member holds; the last ones hold less, or nothing.
        outputs: Size of the range of which windows are read.
        outputs_block: Indices of it per member.
        window: What an index reads.
        numbering: Which block a member holds, and of which one it reads the windows.
    """

    size: IntExpr
    block: IntExpr
    outputs: IntExpr
    outputs_block: IntExpr
    window: Window
    numbering: Numbering

    known: ClassVar[tuple[type, ...]] = (int, Expr)
    """What sizes may be."""

    @classmethod
    def of_args(cls, args: Mapping[str, object]) -> Self:
        """Returns the one that the arguments of `comm.redistribute` describe.

        Raises:
            InvalidInputError: If they describe none.
        """
        names = ("size", "block", "outputs", "outputs_block", "start")
        found: list[Any] = [each for name in names if isinstance(each := args.get(name), cls.known)]
        stride, length, fill = (args.get(name) for name in ("stride", "length", "fill"))
        if (
            len(found) == len(names)
            and isinstance(stride, int)
            and isinstance(length, int)
            and isinstance(fill, (int, float, str))
        ):
            size, block, outputs, outputs_block, start = found
            window = Window("", stride, start, length, fill)
            axes = [_integers(args.get(name, ())) for name in ("sizes", "held", "read")]
            return cls(size, block, outputs, outputs_block, window, Numbering(*axes))
        raise InvalidInputError(f"no redistribution has the arguments {dict(args)}")

    @property
    def args(self) -> tuple[tuple[str, Arg], ...]:
        """The arguments of `comm.redistribute` that describe it."""
        window, numbering = self.window, self.numbering
        axes = {"sizes": numbering.sizes, "held": numbering.held, "read": numbering.read}
        return (
            ("size", self.size),
            ("block", self.block),
            ("outputs", self.outputs),
            ("outputs_block", self.outputs_block),
            ("stride", window.stride),
            ("start", window.start),
            ("length", window.length),
            ("fill", window.fill),
            *(axes.items() if numbering.sizes else ()),
        )

    def extent(self, member: int, members: int) -> tuple[IntExpr, IntExpr]:
        """Returns (first element, number of elements) that one of so many members reads."""
        block = self.numbering.read_by(member)
        indices = block_extent(self.outputs, self.outputs_block, members, block)
        return self.window.extent(*indices, self.size)

    @property
    def is_identity(self) -> bool:
        """Whether every member's window is the block that it holds."""
        window = self.window
        return (
            window.start == 0
            and window.stride == window.length
            and self.size == self.outputs * window.stride
            and self.block == self.outputs_block * window.stride
        )

    @property
    def is_local(self) -> bool:
        """Whether every member holds what it reads."""
        return self._is_aligned and (self.is_within or self.window.fill not in CONTINUED)

    @property
    def is_within(self) -> bool:
        """Whether nobody reads what lies outside of the range."""
        window, last = self.window, self.outputs - 1
        ends = (window.start, last * window.stride + window.start)
        low, high = ends if window.stride > 0 else ends[::-1]
        return is_at_least(low, 0) and is_at_least(self.size, high + window.length)

    @property
    def is_within_block(self) -> bool:
        """Whether every member reads within its own block."""
        return self._is_aligned and self.is_within

    @property
    def _is_aligned(self) -> bool:
        """Whether no window begins before its reader's block, or ends behind where it may."""
        window = self.window
        return (
            not self.numbering.sizes
            and window.stride > 0
            and self.block == self.outputs_block * window.stride
            and is_at_least(window.start, 0)
            and is_at_least(window.stride, window.start + window.length)
        )


@dataclass(frozen=True, slots=True)
class Redistribution(Exchange):
    """The same where all sizes are known, so that everything about it is."""

    size: int
    block: int
    outputs: int
    outputs_block: int

    known: ClassVar[tuple[type, ...]] = (int,)

    @classmethod
    def over(cls, size: int, outputs: int, members: int, window: Window) -> Redistribution:
        """Returns the one from blocks of ceil(size / members) to those of the outputs."""
        block, outputs_block = block_size(size, members), block_size(outputs, members)
        return cls(size, block, outputs, outputs_block, window, PLAIN)

    def interval(self, member: int) -> tuple[int, int]:
        """Returns the indices [low, high) that a member reads; they may lie outside."""
        block = self.numbering.read_by(member)
        first = min(block * self.outputs_block, self.outputs)
        last = min(first + self.outputs_block, self.outputs) - 1
        if last < first:
            return 0, 0
        window = self.window
        assert isinstance(window.start, int)
        low = (first if window.stride > 0 else last) * window.stride + window.start
        return low, low + window.span(last - first + 1)

    def pieces(self, member: int) -> Iterator[tuple[int, Piece]]:
        """Yields what a member reads, in order, each with the member that holds it.

        Filled pieces are the reader's own.
        """
        for piece in pieces(*self.interval(member), self.size, self.window.fill):
            if piece.step is None:
                yield member, piece
            else:
                yield from self._by_holder(piece, member)

    def _by_holder(self, piece: Piece, reader: int) -> Iterator[tuple[int, Piece]]:
        start, length, step = piece
        while length > 0:
            block = start // self.block
            to_border = start - block * self.block + 1
            if step == 1:
                to_border = (block + 1) * self.block - start
            count = min(length, to_border) if step else length
            yield self.numbering.holder(block, reader), Piece(start, count, step)
            start, length = start + count * (step or 0), length - count

    def received(self, member: int) -> int:
        """Returns the number of elements that a member gets from others."""
        return sum(
            piece.extent[1]
            for holder, piece in self.pieces(member)
            if holder != member and piece.step is not None
        )

    def most_received(self) -> int:
        """Returns the most elements that a member gets from others.

        What is missing changes linearly with the member's number but at the range's ends, so the
        first, the last and the middle ones tell. Where blocks are numbered by some axes only,
        it may be a whole block.
        """
        if self.numbering.sizes:
            return min(self.outputs_block, self.size)
        return max(map(self.received, self._telling()), default=0)

    @property
    def is_local(self) -> bool:
        """Whether every member holds what it reads."""
        return not self.most_received() and self.window.fill != "wrap"

    @property
    def is_within(self) -> bool:
        """Whether nobody reads what lies outside of the range."""
        ends = map(self.interval, self._telling())
        return all(low >= 0 and high <= self.size for low, high in ends)

    @property
    def is_within_block(self) -> bool:
        """Whether every member reads within its own block."""
        block = self.block
        return self.is_within and all(
            member * block <= low and high <= (member + 1) * block
            for member, (low, high) in ((each, self.interval(each)) for each in self._telling())
        )

    def _telling(self) -> list[int]:
        """Returns the members who read something, but those between that are like these."""
        members = max(block_size(self.outputs, self.outputs_block), 1) if self.outputs else 0
        asked = {0, 1, members // 2, members - 2, members - 1}
        return sorted(member for member in asked if 0 <= member < members)


def exchange(size: IntExpr, outputs: IntExpr, members: int, window: Window) -> Exchange:
    """Returns the exchange from blocks of ceil(size / members) to those of the outputs.

    It is a `Redistribution` if all of it is numbers.
    """
    if isinstance(size, int) and isinstance(outputs, int) and isinstance(window.start, int):
        return Redistribution.over(size, outputs, members, window)
    block, outputs_block = block_size(size, members), block_size(outputs, members)
    return Exchange(size, block, outputs, outputs_block, window, PLAIN)


def _integers(arg: object) -> tuple[int, ...]:
    items = arg if isinstance(arg, (tuple, list)) else ()
    return tuple(item for item in items if isinstance(item, int))
