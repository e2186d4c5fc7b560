"""Numbering: which blocks of a tensor the members of a group hold, and which they want.

A group spans mesh axes; the position of a member in it is the number that its coordinates make,
the first axis being the major one. Blocks that some of these axes cut are numbered by those
coordinates alone: several members hold the same block, or want it.

All functions take one position, or an array of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def coordinates(position: Any, sizes: Sequence[int]) -> list[Any]:
    """Returns the coordinates of a member along axes of these sizes."""
    coords: list[Any] = []
    for size in reversed(sizes):
        coords.append(position % size)
        position = position // size
    return coords[::-1]


def number(coords: Sequence[Any], sizes: Sequence[int], axes: Sequence[int]) -> Any:
    """Returns the number that the coordinates along some axes make, the first the major one."""
    index = 0
    for axis in axes:
        index = index * sizes[axis] + coords[axis]
    return index


def permuted(position: Any, sizes: Sequence[int], order: Sequence[int]) -> Any:
    """Returns the position of the member whose tensor a member gets in a `comm.permute`.

    Args:
        position: Of the member that gets it.
        sizes: Of the group's axes.
        order: The axes in the order in which they number what members get.
    """
    return number(coordinates(position, sizes), sizes, order)


@dataclass(frozen=True, slots=True)
class Numbering:
    """Which blocks members hold and read.

    Attributes:
        sizes: Of the group's axes. Without any, each member holds and reads the block of its
            position.
        held: The axes, by their place in `sizes`, that number the blocks held, major to minor.
        read: Those that number the blocks that are read.
    """

    sizes: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    read: tuple[int, ...] = ()

    def held_by(self, member: Any) -> Any:
        """Returns the block that a member holds."""
        return self._number(member, self.held) if self.sizes else member

    def read_by(self, member: Any) -> Any:
        """Returns the block that a member reads."""
        return self._number(member, self.read) if self.sizes else member

    def holder(self, block: int, reader: int) -> int:
        """Returns the member from which a reader takes a block: itself if it holds it.

        Readers take turns among the holders, so that none of these sends much more than others.
        """
        if self.held_by(reader) == block:
            return reader
        if not self.sizes:
            return block
        others = self._others(self.held)
        holders = math.prod(self.sizes[axis] for axis in others)
        turn = self._number(reader, (*self.read, *self._others(self.read))) % holders
        coords = [0] * len(self.sizes)
        for axes, index in ((self.held, block), (others, turn)):
            found = coordinates(index, [self.sizes[axis] for axis in axes])
            for axis, coord in zip(axes, found, strict=True):
                coords[axis] = coord
        return int(number(coords, self.sizes, range(len(self.sizes))))

    def _others(self, axes: Sequence[int]) -> tuple[int, ...]:
        return tuple(axis for axis in range(len(self.sizes)) if axis not in axes)

    def _number(self, member: Any, axes: Sequence[int]) -> Any:
        return number(coordinates(member, self.sizes), self.sizes, axes)


PLAIN = Numbering()
"""Every member holds and reads the block of its position."""
