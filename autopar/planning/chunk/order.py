"""The order of ops around loops: a loop is as soon as what it reads is there, in one piece.

Loops that are there already stay in one piece, too. Passes behind this go by the order of ops, and
might let the one half of a torn loop wait for what reads the other one.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.program import Loops, Op
from autopar.planning.chunk.region import Region


def in_order(region: Region, outside: Sequence[Op], blocks: Sequence[Sequence[Op]]) -> list[Op]:
    """Returns ops in an order in which each follows what it reads.

    Args:
        region: What becomes the new loops.
        outside: The other ops, in their order, which they keep where they can.
        blocks: The ops of each new loop.
    """
    order = _Order(region.main.inputs)
    others: dict[Loops, list[Op]] = {}
    for op in outside:
        if loop := region.loop_beside(op):
            others.setdefault(loop, []).append(op)
    waiting = [*others.values(), *(list(block) for block in blocks)]
    later: list[Op] = []
    made_later: set[str] = set()
    remaining = [op for op in outside if not region.loop_beside(op)]
    while remaining or waiting or later:
        ready = next((block for block in waiting if order.is_ready(block)), None)
        if ready is not None:
            waiting.remove(ready)
            order.add(ready)
            remaining, later, made_later = [*later, *remaining], [], set()
        elif remaining:
            op = remaining.pop(0)
            if order.is_ready([op]):
                order.add([op])
            else:
                later.append(op)
                made_later.update(op.results)
        else:
            raise AssertionError("a loop reads what is made of it")
    return order.ops


class _Order:
    """Ops in order."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self.ops: list[Op] = []
        self._there = set(inputs)

    def is_ready(self, block: Sequence[Op]) -> bool:
        """Whether all that a block reads from elsewhere is there."""
        own = {name for op in block for name in op.results}
        return all(name in self._there or name in own for op in block for name in op.operands)

    def add(self, block: Sequence[Op]) -> None:
        """Adds a block."""
        self.ops.extend(block)
        self._there.update(name for op in block for name in op.results)
