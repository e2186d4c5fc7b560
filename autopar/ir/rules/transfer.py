"""Transfers: the blocks of a dimension that some processes hold become those that others get.

The members of the group are those who send, in the order of the blocks that they hold, and behind
them those who get blocks of their own, in the order of these. Several who follow one another may
get the same block. All of it is arithmetic on a few integers, the same for every member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Stretch(NamedTuple):
    """What one member sends to another.

    Attributes:
        sender, receiver: Their positions in the group.
        start: The first element.
        length: How many there are, at least one.
    """

    sender: int
    receiver: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """The arguments of a `comm.transfer`.

    Attributes:
        size: Of the dimension.
        senders: How many members hold blocks.
        block: Elements that each of these holds; the last ones hold less, or nothing.
        arriving_block: Elements that each of the others gets, the last ones less, or nothing.
        copies: How many members get the same block.
    """

    size: int
    senders: int
    block: int
    arriving_block: int
    copies: int

    @classmethod
    def of_args(cls, args: Mapping[str, object]) -> Transfer:
        """Returns the one that the arguments of an op describe, all of them integers."""
        names = ("size", "senders", "block", "arriving_block", "copies")
        return cls(*(number for name in names if isinstance(number := args[name], int)))

    def extent(self, member: int) -> tuple[int, int]:
        """Returns (first element, number of elements) of what a member sends or gets."""
        is_sender = member < self.senders
        number = member if is_sender else (member - self.senders) // self.copies
        block = self.block if is_sender else self.arriving_block
        start = min(number * block, self.size)
        return start, min(block, self.size - start)

    def stretches(self, member: int, members: int) -> Iterator[Stretch]:
        """Yields what a member sends, or gets, in the order of the elements, then of receivers."""
        start, length = self.extent(member)
        is_sender = member < self.senders
        for other in range(self.senders, members) if is_sender else range(self.senders):
            begin, count = self.extent(other)
            first, last = max(start, begin), min(start + length, begin + count)
            if first < last:
                ends = (member, other) if is_sender else (other, member)
                yield Stretch(*ends, first, last - first)
