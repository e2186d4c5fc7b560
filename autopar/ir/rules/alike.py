"""Calls that are alike: of the same op and types, and split the same way."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.program import Arg, Op, OpDist, Ref, Value


def call_key(op: Op, dist: OpDist, values: Mapping[str, Value]) -> object:
    """Returns what calls have in common around which layouts are the same.

    Args:
        op: The op.
        dist: How it is split.
        values: Those of its function, by name.
    """
    types = tuple(
        (value.shape, value.dtype)
        for value in (values[name] for name in (*op.operands, *op.results))
    )
    return op.kind, tuple((name, _anonymous(arg)) for name, arg in op.args), types, dist


def _anonymous(arg: Arg) -> object:
    """Returns an argument without names of values, and with its type: 1 equals True and 1.0."""
    if isinstance(arg, tuple):
        return tuple(map(_anonymous, arg))
    return Ref if isinstance(arg, Ref) else (type(arg), arg)
