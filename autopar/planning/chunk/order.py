"""The order of ops around loops: a loop is as soon as what it reads is there, in one piece."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.program import Function, Op


def in_order(main: Function, outside: Sequence[Op], blocks: Sequence[Sequence[Op]]) -> list[Op]:
    """Returns ops in an order in which each follows what it reads.

    Args:
        main: The function that they are of.
        outside: The ops in no loop, in their order, which they keep where they can.
        blocks: Those of each loop.
    """
    order = _Order(main.inputs)
    waiting = [list(block) for block in blocks]
    later: list[Op] = []
    made_later: set[str] = set()
    remaining = list(outside)
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
