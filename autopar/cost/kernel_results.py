"""Where kernels put their results: into memory of their own, or into that of an operand.

An op's effect on memory depends on how its operands lie there: a reshape of a permuted tensor is a
copy, a permutation of anything is free. What is said here is what torch's kernels on the CPU do,
called as the runtime calls them. Memory that a kernel takes and gives back while it runs is not
counted unless an op of torch's takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from autopar.cost.strides import (
    Shape,
    Strides,
    dense,
    elementwise,
    expanded,
    is_contiguous,
    nbytes,
    reshaped,
)
from autopar.ir.kernel_memory import DENSE, DENSE_ROWS, RESHAPES, TORCH_NAMESPACES, may_alias
from autopar.ir.ops import functional_kind
from autopar.ir.ops.pointwise import RULES as POINTWISE
from autopar.ir.program import Arg
from autopar.ir.transfers import ENDED, STARTED


class Placed(NamedTuple):
    """A tensor as it lies in memory."""

    shape: Shape
    strides: Strides
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, as if each were stored once."""
        return nbytes(self.shape, self.itemsize)


class Result(NamedTuple):
    """Where a result is.

    Attributes:
        strides: How it lies there.
        operand: The position of the operand whose memory it shares; None if it has its own.
    """

    strides: Strides
    operand: int | None = None


class Effect(NamedTuple):
    """What an op does with memory.

    Attributes:
        results: Where each result is.
        temporary_bytes: What is taken and given back while it runs.
    """

    results: tuple[Result, ...]
    temporary_bytes: int = 0


Args = tuple[tuple[str, Arg], ...]
Shapes = tuple[Shape, ...]


@lru_cache(maxsize=16384)
def effect(kind: str, args: Args, operands: tuple[Placed, ...], results: Shapes) -> Effect:
    """Returns what an op does with memory.

    Args:
        kind: The op's kind.
        args: Those of its arguments that are integers, texts or lists of integers.
        operands: The tensors that it reads.
        results: The shapes of what it computes.
    """
    given = dict(args)
    if kind in RESHAPES:
        return _reshape(operands[0], results[0])
    view = _VIEWS.get(kind)
    if view is not None:
        return Effect(
            tuple(view(given, operands[0], shape, at) for at, shape in enumerate(results))
        )
    if functional_kind(kind) != kind:
        return Effect(tuple(Result(operands[0].strides, 0) for _ in results))
    if kind == "autopar.to_partial":
        return _to_partial(given, operands[0], results[0])
    copied = _copied_bytes(kind, operands)
    laid_out = _LAID_OUT.get(kind)
    if laid_out is not None:
        return Effect(tuple(map(Result, laid_out(operands, results))), copied)
    if given.get("memory_format") != CONTIGUOUS and (kind in POINTWISE or kind in _LIKE_OPERANDS):
        like = [(each.shape, each.strides) for each in operands]
        return Effect(tuple(Result(elementwise(shape, like)) for shape in results), copied)
    if operands and len(results) == 1 and _is_unknown_view(kind):
        return Effect((Result(dense(results[0]), 0),), copied)
    return Effect(tuple(Result(dense(shape)) for shape in results), copied)


CONTIGUOUS = "torch.contiguous_format"
"""As an argument `memory_format`, that a result is contiguous however the operand lies."""


def _copied_bytes(kind: str, operands: Sequence[Placed]) -> int:
    """Returns the bytes of operands that are copied since the kernel wants them dense."""
    if kind in DENSE or kind.partition(".")[0] not in (*TORCH_NAMESPACES, *_OURS):
        sparse = (each for each in operands if not is_contiguous(each.shape, each.strides))
    elif kind in DENSE_ROWS:
        sparse = (each for each in operands if each.strides and each.strides[-1] != 1)
    else:
        return 0
    return sum(each.nbytes for each in sparse)


_OURS = ("autopar", "comm")
"""The namespaces of ops that take operands as they lie; those of other libraries get dense ones."""


def _is_unknown_view(kind: str) -> bool:
    return kind.startswith("aten.") and kind not in _NEW and may_alias(kind)


_NEW = frozenset(("aten._conj.default", "aten._neg_view.default"))
"""Views of torch that the runtime computes."""


def _reshape(operand: Placed, shape: Shape) -> Effect:
    strides = reshaped(operand.shape, operand.strides, shape)
    return Effect((Result(dense(shape)) if strides is None else Result(strides, 0),))


def _to_partial(args: Mapping[str, Arg], operand: Placed, shape: Shape) -> Effect:
    if args.get("index") == 0:
        return Effect((Result(operand.strides, 0),))
    return Effect((Result(elementwise(shape, [(operand.shape, operand.strides)])),))


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
    rank = len(operand.shape)
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
    dim = _integer(args, "dim") % len(operand.shape)
    return Result((*operand.strides[:dim], *operand.strides[dim + 1 :]), 0)


def _diagonal(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    rank = len(operand.shape)
    one, other = _integer(args, "dim1") % rank, _integer(args, "dim2", 1) % rank
    kept = [stride for dim, stride in enumerate(operand.strides) if dim not in (one, other)]
    return Result((*kept, operand.strides[one] + operand.strides[other]), 0)


def _unfold(args: Mapping[str, Arg], operand: Placed, shape: Shape, at: int) -> Result:
    strides = list(operand.strides)
    dim = _integer(args, "dimension") % len(strides)
    inner = strides[dim]
    strides[dim] *= _integer(args, "step", 1)
    return Result((*strides, inner), 0)


_VIEWS: Mapping[str, View] = {
    "barrier": _same,
    **dict.fromkeys(ENDED, _same),
    "aten.alias.default": _same,
    "aten.detach.default": _same,
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

_LIKE_OPERANDS = frozenset(
    (
        "aten._to_copy.default",
        "aten.clone.default",
        "aten.native_dropout.default",
        "aten.native_dropout_backward.default",
        "aten.zeros_like.default",
        "aten.ones_like.default",
        "aten.full_like.default",
        "aten.empty_like.default",
        *STARTED,
    )
)
"""Ops, besides those on elements, whose results lie as their operands do."""


def _attention(operands: Sequence[Placed], results: Shapes) -> list[Strides]:
    """The result lies as the query does; sums of exponentials [batch, heads, length] by length."""
    query = operands[0]
    out = elementwise(results[0], [(query.shape, query.strides)])
    return [out, *(_swapped(shape, 1, 2) for shape in results[1:])]


def _attention_backward(operands: Sequence[Placed], results: Shapes) -> list[Strides]:
    """[batch, heads, length, size], as a transposed [batch, length, heads, size]."""
    return [_swapped(shape, 1, 2) for shape in results]


def _swapped(shape: Shape, one: int, other: int) -> Strides:
    """Returns the strides of a contiguous tensor of which two dimensions are transposed."""
    order = list(range(len(shape)))
    order[one], order[other] = other, one
    strides = dense([shape[dim] for dim in order])
    return tuple(strides[dim] for dim in order)


_LAID_OUT: Mapping[str, Callable[[Sequence[Placed], Shapes], list[Strides]]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
}
"""Kernels whose results lie in an order of their own."""
