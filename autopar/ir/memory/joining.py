"""Which steps of an optimizer, written in place, one call for many tensors carries out.

A program updates one parameter at a time, so that each can have a layout of its own. Torch has the
same kernels for lists of tensors, which spare the launch of one kernel per parameter.
"""

from __future__ import annotations

from collections.abc import Iterator

from autopar.ir.memory.updates import Writes
from autopar.ir.ops.elementwise.optimizer import FUSED_STEPS, ON_LISTS
from autopar.ir.program import Function, Op


def runs(function: Function, writes: Writes) -> Iterator[range]:
    """Yields the ops that one call can carry out: neighbours that differ in their tensors only.

    Args:
        function: The function.
        writes: Which of its ops write in place.
    """
    start = 0
    for at in range(1, len(function.ops) + 1):
        if at == len(function.ops) or not _joins(function, writes, start, at):
            yield range(start, at)
            start = at


def _joins(function: Function, writes: Writes, start: int, at: int) -> bool:
    ops = function.ops
    one, other = ops[start], ops[at]
    if at not in writes.mutations or start not in writes.mutations:
        return False
    if (fixed := _fixed(one)) is None or fixed != _fixed(other):
        return False
    if one.plan != other.plan or _dtypes(function, one) != _dtypes(function, other):
        return False
    if writes.after.get(at - 1) or writes.mutations[at].copied or writes.mutations[start].copied:
        return False
    computed = {name for each in ops[start:at] for name in each.results}
    return computed.isdisjoint(other.operands)


def _dtypes(function: Function, op: Op) -> list[str]:
    """Returns the dtypes of what an op writes, which accelerators want to be those of all."""
    return [function.values[name].dtype for name in op.results]


def _fixed(op: Op) -> tuple[object, ...] | None:
    """Returns what ops must have in common to be joined; None if they can't be."""
    if op.kind in ON_LISTS:
        return (op.kind, op.args[1:]) if len(op.args) == 2 else None
    lists = [name for name, arg in op.args if isinstance(arg, tuple) and arg]
    if not lists or op.kind not in FUSED_STEPS:
        return None
    return op.kind, tuple((name, arg if name not in lists else ()) for name, arg in op.args)
