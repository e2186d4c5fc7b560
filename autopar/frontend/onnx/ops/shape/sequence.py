"""Sequences and optionals. They exist during import only: lists of tensors, and None."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autopar.frontend.onnx.ops.shape.layout import as_axes, as_ints
from autopar.frontend.onnx.trace.node import Array, Node, Refused
from autopar.frontend.onnx.trace.values import TensorTree, Translation

Sequence = list[torch.Tensor]


def _construct(node: Node, *tensors: torch.Tensor) -> TensorTree:
    return list(tensors)


def _empty(node: Node) -> TensorTree:
    return []


def _position(position: Array, count: int) -> int:
    at = int(position.item())
    at = at + count if at < 0 else at
    if not 0 <= at < count:
        raise Refused(f"position {int(position.item())} of {count}")
    return at


def _at(node: Node, sequence: Sequence, position: Array) -> TensorTree:
    return sequence[_position(position, len(sequence))]


def _insert(
    node: Node, sequence: Sequence, tensor: torch.Tensor, position: Array | None = None
) -> TensorTree:
    count = len(sequence)
    at = count if position is None or int(position.item()) == count else _position(position, count)
    return [*sequence[:at], tensor, *sequence[at:]]


def _erase(node: Node, sequence: Sequence, position: Array | None = None) -> TensorTree:
    at = len(sequence) - 1 if position is None else _position(position, len(sequence))
    return [*sequence[:at], *sequence[at + 1 :]]


def _length(node: Node, sequence: Sequence) -> TensorTree:
    return torch.tensor(len(sequence), dtype=torch.int64)


def _concat(node: Node, sequence: Sequence) -> TensorTree:
    axis = node.integer("axis")
    return torch.stack(sequence, axis) if node.flag("new_axis") else torch.cat(sequence, axis)


def _split(node: Node, x: torch.Tensor, sizes: Array | None = None) -> TensorTree:
    axis = as_axes([node.integer("axis", 0)], x.ndim)[0]
    if sizes is None and not node.flag("keepdims", True):
        return list(torch.unbind(x, axis))
    if sizes is None or sizes.ndim == 0:
        return list(torch.split(x, 1 if sizes is None else int(sizes.item()), axis))
    return list(torch.split(x, as_ints(sizes), axis))


def _optional(node: Node, value: TensorTree = None) -> TensorTree:
    return value


def _has_element(node: Node, value: TensorTree = None) -> TensorTree:
    return torch.tensor(value is not None)


def _get_element(node: Node, value: TensorTree) -> TensorTree:
    if value is None:
        raise Refused("the optional is empty")
    return value


TABLE: Mapping[str, Translation] = {
    "ConcatFromSequence": Translation(_concat),
    "Optional": Translation(_optional),
    "OptionalGetElement": Translation(_get_element),
    "OptionalHasElement": Translation(_has_element, shaped=(0,)),
    "SequenceAt": Translation(_at, static=(1,)),
    "SequenceConstruct": Translation(_construct),
    "SequenceEmpty": Translation(_empty),
    "SequenceErase": Translation(_erase, static=(1,)),
    "SequenceInsert": Translation(_insert, static=(2,)),
    "SequenceLength": Translation(_length, shaped=(0,)),
    "SplitToSequence": Translation(_split, static=(1,)),
}
