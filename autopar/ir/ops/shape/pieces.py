"""Pieces: which contiguous pieces of one tensor the tensors on the other side of an op are.

A split, a slice and a cat say that a dimension consists of pieces that have little to do with one
another. Their rules only say what of it may be split alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autopar.ir.expr.expression import Expr
from autopar.ir.ops import RULES
from autopar.ir.ops.shape import layout, window
from autopar.ir.program import Op, Value

CONCATENATION = "aten.cat.default"
JOINS = frozenset((CONCATENATION, "aten.stack.default"))
"""Ops that put tensors together along a dimension, an old or a new one."""


class Pieces(NamedTuple):
    """The pieces of a tensor along one dimension: (first index, index behind the last) of each.

    None of them is of an open size.
    """

    dim: int
    ranges: tuple[tuple[int, int], ...]


def taken(op: Op, values: Mapping[str, Value]) -> Pieces | None:
    """Returns which pieces of its operand the results of an op are; None if they are none."""
    rule = RULES.get(op.kind)
    if rule is layout.split:
        return _side_by_side(op, values, op.results)
    if rule is window.slice_ and op.arg("step", 1) == 1:
        return _sliced(op, values)
    return None


def put(op: Op, values: Mapping[str, Value]) -> Pieces | None:
    """Returns which pieces of its result the operands of an op are; None if they are none."""
    if RULES.get(op.kind) is not window.cat:
        return None
    rank = len(values[op.results[0]].shape)
    if any(len(values[name].shape) != rank for name in op.operands):
        return None
    return _side_by_side(op, values, op.operands)


def _side_by_side(op: Op, values: Mapping[str, Value], names: Sequence[str]) -> Pieces | None:
    dim = _dim(op, values[names[0]])
    ranges, start = [], 0
    for name in names:
        size = values[name].global_shape[dim]
        if not isinstance(size, int):
            return None
        ranges.append((start, start + size))
        start += size
    return Pieces(dim, tuple(ranges))


def _sliced(op: Op, values: Mapping[str, Value]) -> Pieces | None:
    operand = values[op.operands[0]]
    dim = _dim(op, operand)
    size, count = operand.global_shape[dim], values[op.results[0]].global_shape[dim]
    given = op.arg("start")
    if not isinstance(size, int) or not isinstance(count, int) or isinstance(given, Expr):
        return None
    start = given if isinstance(given, int) else 0
    start = max(0, start + size) if start < 0 else start
    return Pieces(dim, ((start, start + count),))


def _dim(op: Op, value: Value) -> int:
    dim = op.arg("dim", 0)
    return int(dim) % max(1, len(value.shape)) if isinstance(dim, int) else 0
