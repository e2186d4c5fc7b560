"""Windows: a part of one index range that a part of another needs, and who holds it.

A convolution's output rows [a, b) need the input rows [a * stride + start, (b - 1) * stride +
start + length). So do pooling, slices, pads, rolls and flips. Where both ranges are cut into
blocks, what a member needs and doesn't hold is the halo, however far away it lies. All of this is
arithmetic on a few integers, the same for every member, so nothing grows with their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autopar.base.errors import InvalidInputError
from autopar.ir.dims import block_size
from autopar.ir.program import Arg
from autopar.ir.rules.numbering import PLAIN, Numbering

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
        start: Of index 0; may lie outside of the range.
        length: Elements per index.
        fill: What stands outside of the range.
    """

    of: str
    stride: int = 1
    start: int = 0
    length: int = 1
    fill: Fill = 0

    def span(self, count: int) -> int:
        """Returns how many elements `count` consecutive indices read, those outside included."""
        return (count - 1) * abs(self.stride) + self.length if count else 0


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


@dataclass(frozen=True, slots=True)
class Redistribution:
    """From blocks of one range to the windows of another's blocks.

    Attributes:
        size: Of the range that is held.
        block: Elements of it that a member holds; the last ones hold less, or nothing.
        outputs: Size of the range of which windows are read.
        outputs_block: Indices of it per member.
        window: What an index reads.
        numbering: Which block a member holds, and of which one it reads the windows.
    """

    size: int
    block: int
    outputs: int
    outputs_block: int
    window: Window
    numbering: Numbering

    @classmethod
    def over(cls, size: int, outputs: int, members: int, window: Window) -> Redistribution:
        """Returns the one from blocks of ceil(size / members) to those of the outputs."""
        block, outputs_block = block_size(size, members), block_size(outputs, members)
        return cls(size, block, outputs, outputs_block, window, PLAIN)

    @classmethod
    def of_args(cls, args: Mapping[str, object]) -> Redistribution:
        """Returns the one that the arguments of `comm.redistribute` describe.

        Raises:
            InvalidInputError: If they describe none.
        """
        names = ("size", "block", "outputs", "outputs_block", "stride", "start", "length")
        found = [value for name in names if isinstance(value := args.get(name), int)]
        fill = args.get("fill")
        if len(found) != len(names) or not isinstance(fill, (int, float, str)):
            raise InvalidInputError(f"no redistribution has the arguments {dict(args)}")
        size, block, outputs, outputs_block, stride, start, length = found
        window = Window("", stride, start, length, fill)
        axes = [_integers(args.get(name, ())) for name in ("sizes", "held", "read")]
        return cls(size, block, outputs, outputs_block, window, Numbering(*axes))

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

    def interval(self, member: int) -> tuple[int, int]:
        """Returns the indices [low, high) that a member reads; they may lie outside."""
        block = self.numbering.read_by(member)
        first = min(block * self.outputs_block, self.outputs)
        last = min(first + self.outputs_block, self.outputs) - 1
        if last < first:
            return 0, 0
        window = self.window
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


def _integers(arg: object) -> tuple[int, ...]:
    items = arg if isinstance(arg, (tuple, list)) else ()
    return tuple(item for item in items if isinstance(item, int))
