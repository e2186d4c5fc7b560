"""Joins steps of an optimizer that write in place into one call for many tensors.

Which ones that are, `autopar.ir.memory.joining` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autopar.ir.memory.kernels import overload
from autopar.ir.ops.elementwise.optimizer import ON_LISTS
from autopar.ir.program import Arg, Op, Ref
from autopar.runtime.kernels.table import in_place_kernel


def joined(ops: Sequence[Op]) -> tuple[Callable[..., Any], Op]:
    """Returns the kernel that carries out such ops, and what it is called with, as an op."""
    first = ops[0]
    if len(ops) == 1:
        return in_place_kernel(first.kind), first
    args = tuple(
        (name, _joined_arg([op.arg(name) for op in ops]) if _is_list(arg, at, first) else arg)
        for at, (name, arg) in enumerate(first.args)
    )
    many = ON_LISTS.get(first.kind)
    kernel = in_place_kernel(first.kind) if many is None else overload(many)
    return kernel, replace(first, args=args)


def _is_list(arg: Arg, at: int, op: Op) -> bool:
    return at == 0 if op.kind in ON_LISTS else isinstance(arg, tuple)


def _joined_arg(args: Sequence[Arg]) -> Arg:
    """Returns one list of lists or of tensors."""
    return tuple(
        item
        for arg in args
        for item in ((arg,) if isinstance(arg, Ref) else arg or ())  # type: ignore[union-attr]
    )
