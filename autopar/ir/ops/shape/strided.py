"""How results of ops lie in memory, beside the rules that say what they are.

A view is in its operand's memory, under strides that follow from the operand's; other ops take
memory of their own, most of them dense. What is said here is what torch's kernels on the CPU do.

Taking results for dense makes peaks of steps up to 4.6% too high (`benchmarks/without.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from autopar.ir.emitted import ADD_PRODUCT
from autopar.ir.memory.strides import (
    Placed,
    Result,
    Shape,
    Strides,
    dense,
    elementwise,
    expanded,
    is_contiguous,
)
from autopar.ir.memory.transfers import ENDED, STARTED
from autopar.ir.ops.elementwise.pointwise import RULES as POINTWISE
from autopar.ir.ops.products.attention import ATTENTION, FLASH
from autopar.ir.ops.products.attention_backward import ATTENTION_BACKWARD, FLASH_BACKWARD
from autopar.ir.ops.products.attention_kernels import (
    backward_temporaries,
    forward_temporaries,
    is_efficient,
)
from autopar.ir.ops.products.matmul import add_product_bytes
from autopar.ir.ops.products.recurrent_memory import TAKEN as RECURRENT_TAKEN
from autopar.ir.ops.products.recurrent_memory import Taken, layer_workspace
from autopar.ir.program import Arg

View = Callable[[Mapping[str, Arg], Placed, Shape, int], Result]
"""(arguments, operand, shape of a result, its position) -> where it is."""


def _integer(args: Mapping[str, Arg], name: str, default: int = 0) -> int:
    found = args.get(name, default)
    return found if isinstance(found, int) else default


def _integers(args: Mapping[str, Arg], name: str) -> list[int]:
    found = args.get(name, ())
    items = found if isinstance(found, tuple) else (found,)
    return [item for item in items if isinstance(item, int)]


def _same(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    strides = operand.strides
    return Result(strides if len(strides) == len(shape) else dense(shape), 0)


def _contiguous(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    if is_contiguous(operand.shape, operand.strides):
        return Result(operand.strides, 0)
    return Result(dense(shape))


def _permute(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    return Result(tuple(operand.strides[dim] for dim in _integers(args, "dims")), 0)


def _transpose(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    strides = list(operand.strides)
    one, other = _integer(args, "dim0"), _integer(args, "dim1")
    strides[one], strides[other] = strides[other], strides[one]
    return Result(tuple(strides), 0)


def _t(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    return Result(operand.strides[::-1], 0)


def _expand(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    return Result(expanded(operand.shape, operand.strides, shape), 0)


def _unsqueeze(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    dim = _integer(args, "dim") % len(shape)
    inner = operand.shape[dim] * operand.strides[dim] if dim < len(operand.shape) else 1
    return Result((*operand.strides[:dim], inner, *operand.strides[dim:]), 0)


def _squeeze(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    rank = max(1, len(operand.shape))
    dims = {dim % rank for dim in _integers(args, "dim")} if "dim" in args else set(range(rank))
    kept = [
        stride
        for dim, (size, stride) in enumerate(zip(operand.shape, operand.strides, strict=True))
        if size != 1 or dim not in dims
    ]
    return Result(tuple(kept), 0)


def _slice(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    strides = list(operand.strides)
    strides[_integer(args, "dim")] *= _integer(args, "step", 1)
    return Result(tuple(strides), 0)


def _select(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    dim = _integer(args, "dim") % max(1, len(operand.shape))
    return Result((*operand.strides[:dim], *operand.strides[dim + 1 :]), 0)


def _diagonal(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    rank = len(operand.shape)
    one, other = _integer(args, "dim1") % rank, _integer(args, "dim2", 1) % rank
    kept = [stride for dim, stride in enumerate(operand.strides) if dim not in (one, other)]
    return Result((*kept, operand.strides[one] + operand.strides[other]), 0)


def _unfold(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    if not operand.shape:
        return Result(dense(shape), 0)
    strides = list(operand.strides)
    dim = _integer(args, "dimension") % len(strides)
    inner = strides[dim]
    strides[dim] *= _integer(args, "step", 1)
    return Result((*strides, inner), 0)


def _first_only(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    """The first rank's is the operand; others have something else of its kind."""
    if args.get("index") == 0:
        return Result(operand.strides, 0)
    return Result(elementwise(shape, [(operand.shape, operand.strides)]))


VIEWS: Mapping[str, View] = {
    "barrier": _same,
    **dict.fromkeys(ENDED, _same),
    "aten.alias.default": _same,
    "aten.detach.default": _same,
    "aten.lift.default": _same,
    "aten.positive.default": _same,
    "aten.resolve_conj.default": _same,
    "aten.resolve_neg.default": _same,
    "aten.contiguous.default": _contiguous,
    "aten.lift_fresh.default": _same,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _t,
    "aten.expand.default": _expand,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.default": _squeeze,
    "aten.squeeze.dim": _squeeze,
    "aten.squeeze.dims": _squeeze,
    "aten.slice.Tensor": _slice,
    "aten.narrow.default": _same,
    "aten.select.int": _select,
    "aten.split.Tensor": _same,
    "aten.split_with_sizes.default": _same,
    "aten.chunk.default": _same,
    "aten.unsafe_chunk.default": _same,
    "aten.unsafe_split.Tensor": _same,
    "aten.unsafe_split_with_sizes.default": _same,
    "aten.unbind.int": _select,
    "aten.diagonal.default": _diagonal,
    "aten.unfold.default": _unfold,
}
"""Views that any strides allow."""

ON_SOME_RANKS: Mapping[str, View] = {"autopar.to_partial": _first_only}
"""Ops whose results are views on some ranks, and computed on others."""

_DENSE = frozenset(
    (
        "aten._conj_copy.default",
        "aten._neg_view_copy.default",
        "aten.angle.default",
        "aten.detach_copy.default",
        "aten.lift_fresh_copy.default",
        "aten.log_sigmoid_forward.default",
        "aten.masked_fill.Scalar",
        "aten.masked_fill.Tensor",
        "aten.mvlgamma.default",
        "aten.pow.Scalar",
    )
)
"""Ops on elements whose results are dense nevertheless."""

DROPOUT_BACKWARD = "aten.native_dropout_backward.default"

MASK_AT_ONCE = 1 << 16
"""Elements of a mask that become numbers at a time, so that they stay in a cache."""

LIKE_OPERANDS = (frozenset(POINTWISE) - _DENSE) | frozenset(
    (
        "aten._to_copy.default",
        "aten.clone.default",
        "aten.native_dropout.default",
        DROPOUT_BACKWARD,
        "aten.zeros_like.default",
        "aten.ones_like.default",
        "aten.full_like.default",
        "aten.empty_like.default",
        *STARTED,
    )
)
"""Ops whose results lie as their operands do: those on elements, and a few more."""


def _attention(operands: Sequence[Placed], results: Sequence[Shape]) -> list[Strides]:
    """The result lies as the query does; sums of exponentials [batch, heads, length] by length."""
    query = operands[0]
    if query.strides[-1] != 1:
        query = query._replace(strides=dense(query.shape))
    out = elementwise(results[0], [(query.shape, query.strides)])
    return [out, *(_swapped(shape, 1, 2) for shape in results[1:])]


def _attention_backward(operands: Sequence[Placed], results: Sequence[Shape]) -> list[Strides]:
    """[batch, heads, length, size], as a transposed [batch, length, heads, size]."""
    return [_swapped(shape, 1, 2) for shape in results]


def _gpu_attention(operands: Sequence[Placed], results: Sequence[Shape]) -> list[Strides]:
    """As the query, or from the efficient kernel by length; logarithms of sums side by side."""
    query = operands[0]
    by_length = is_efficient(query.itemsize, masked=len(operands) > 3)
    out, *_ = _attention_backward(operands, results) if by_length else _attention(operands, results)
    return [out, *map(dense, results[1:])]


def _gpu_attention_backward(operands: Sequence[Placed], results: Sequence[Shape]) -> list[Strides]:
    """As the operands, or from the efficient kernel by length, but for sums over shared heads."""
    _, query, key, value, *_ = operands
    if is_efficient(query.itemsize, masked=len(operands) > 6):
        shared = query.shape[1] != key.shape[1]
        by_length = _attention_backward(operands, results)
        return [by_length[0], *map(dense, results[1:])] if shared else by_length
    given = zip(results, (query, key, value), strict=True)
    return [elementwise(shape, [(each.shape, each.strides)]) for shape, each in given]


def _swapped(shape: Shape, one: int, other: int) -> Strides:
    """Returns the strides of a contiguous tensor of which two dimensions are transposed."""
    order = list(range(len(shape)))
    order[one], order[other] = other, one
    strides = dense([shape[dim] for dim in order])
    return tuple(strides[dim] for dim in order)


LAID_OUT: Mapping[str, Callable[[Sequence[Placed], Sequence[Shape]], list[Strides]]] = {
    FLASH: _attention,
    FLASH_BACKWARD: _attention_backward,
    ATTENTION: _gpu_attention,
    ATTENTION_BACKWARD: _gpu_attention_backward,
}
"""Kernels whose results lie in an order of their own."""

IN_TERMS = frozenset(
    f"aten.{name}.default"
    for name in ("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss")
)
"""Losses that lie in the memory of their terms, of which there is one per element."""


Room = Callable[[Mapping[str, Arg], Sequence[Placed], Sequence[Shape]], tuple[int, ...]]
"""(arguments, operands, shapes of results) -> the least bytes that each result's memory has."""


def _embedding_bag_room(
    args: Mapping[str, Arg], operands: Sequence[Placed], results: Sequence[Shape]
) -> tuple[int, ...]:
    """The bag of each index, if it is computed, is counted with one index more."""
    (count,) = results[1]
    return (0, (count + 1) * operands[1].itemsize if count else 0, *(0 for _ in results[2:]))


def _number_bytes(
    args: Mapping[str, Arg], operands: Sequence[Placed], results: Sequence[Shape]
) -> int:
    """A number becomes a tensor of the dtype of what it stands beside."""
    return operands[-1].itemsize


def _mask_bytes(
    args: Mapping[str, Arg], operands: Sequence[Placed], results: Sequence[Shape]
) -> int:
    """A mask becomes numbers, piece by piece where it lies as they do."""
    gradient, mask = operands
    count = math.prod(gradient.shape)
    if all(is_contiguous(each.shape, each.strides) for each in (gradient, mask)):
        count = min(count, MASK_AT_ONCE)
    return count * gradient.itemsize if mask.itemsize != gradient.itemsize else 0


ROOM: Mapping[str, Room] = {
    "aten._embedding_bag.default": _embedding_bag_room,
    "aten._embedding_bag_forward_only.default": _embedding_bag_room,
    "aten.mkldnn_rnn_layer.default": layer_workspace,
}
"""Kernels whose results take more memory than their elements."""

TAKEN: Mapping[str, Taken] = {
    **RECURRENT_TAKEN,
    ATTENTION: forward_temporaries,
    ATTENTION_BACKWARD: backward_temporaries,
    "aten.where.ScalarOther": _number_bytes,
    "aten.where.ScalarSelf": _number_bytes,
    ADD_PRODUCT: add_product_bytes,
    DROPOUT_BACKWARD: _mask_bytes,
}
"""What kernels take and give back, per op."""
