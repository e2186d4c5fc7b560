"""Deferred sums: whose results nobody awaits.

What nobody reads in the phase that computes it, as gradients are for the update, is deferred: its
sum is joined with others (`cost.reshard.buckets`), and `planner.DeferredSumPlanner` says how it is
reduced.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.ops.shape.view import VIEWS
from autopar.ir.program import Op


def awaited(ops: Sequence[Op]) -> frozenset[str]:
    """Returns the values that are read in the phase that computes them.

    A view reads what it shows only if something reads the view.

    Args:
        ops: Of a function, each behind those whose results it reads.
    """
    readers: dict[str, list[Op]] = {}
    read: set[str] = set()
    for op in reversed(ops):
        for name in op.results:
            for reader in readers.get(name, ()):
                if reader.kind in VIEWS:
                    is_read = reader.results[0] in read
                else:
                    is_read = reader.lifetime == op.lifetime
                if is_read:
                    read.add(name)
        for name in op.operands:
            readers.setdefault(name, []).append(op)
    return frozenset(read)
