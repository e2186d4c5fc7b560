"""Redistribution: how much moves when other axes cut a dimension, counted without looking at ranks.

Blocks over `before` parts become blocks over `after` parts of the same dimension. A process gets
the stretches of its new block from processes that hold them. Where several do, those who want a
stretch take turns among its holders, so that nobody sends much more than others.
"""

from __future__ import annotations

from typing import NamedTuple

from autopar.ir.dims import block_size


class Messages(NamedTuple):
    """What one process sends or receives, whichever is more.

    Attributes:
        messages: Number of messages.
        elements: Elements of the dimension in all of them.
    """

    messages: int
    elements: int


def redistribution_messages(
    size: int, held: int, wanted: int, holders: int, readers: int
) -> Messages:
    """Returns what a process sends or receives at most.

    Args:
        size: Of the dimension.
        held: Elements of a block that a process has.
        wanted: Elements of a block that a process gets.
        holders: How many have the same block.
        readers: How many get the same block.
    """
    if not min(held, wanted):
        return Messages(0, 0)
    received = _overlapped(wanted, held, size)
    sent = block_size(_overlapped(held, wanted, size) * readers, holders)
    return Messages(max(received, sent), max(wanted, sent * min(held, wanted)))


def _overlapped(block: int, other: int, size: int) -> int:
    """Returns how many of the `other` blocks a block overlaps at most."""
    if block % other == 0:
        return min(block // other, block_size(size, other))
    if other % block == 0:
        return 1
    return min((block + other - 2) // other + 1, block_size(size, other))
