"""Where kernels put their results: into memory of their own, or into that of an operand.

An op's effect on memory depends on how its operands lie there: a reshape of a permuted tensor is a
copy, a permutation of anything is free. What is said here is what torch's kernels on the CPU do,
called as the runtime calls them. Memory that a kernel takes and gives back while it runs is not
counted unless an op of torch's takes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from autopar.ir.memory.kernels import OWN_NAMESPACE, TORCH_NAMESPACES, may_alias
from autopar.ir.memory.strides import (
    Placed,
    Result,
    Shape,
    dense,
    elementwise,
    is_contiguous,
    reshaped,
)
from autopar.ir.ops import functional_kind
from autopar.ir.ops.dense import DENSE, DENSE_ROWS
from autopar.ir.ops.shape.strided import (
    IN_TERMS,
    LAID_OUT,
    LIKE_OPERANDS,
    ON_SOME_RANKS,
    ROOM,
    TAKEN,
    VIEWS,
)
from autopar.ir.ops.shape.view import MARKED, RESHAPES
from autopar.ir.program import Arg


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
    view = VIEWS.get(kind) or ON_SOME_RANKS.get(kind)
    if view is not None and operands:
        return Effect(
            tuple(view(given, operands[0], shape, index) for index, shape in enumerate(results))
        )
    if functional_kind(kind) != kind:
        return Effect(tuple(Result(operands[0].strides, 0) for _ in results))
    copied = _copied_bytes(kind, operands)
    if kind in TAKEN:
        copied += TAKEN[kind](given, operands, results)
    if kind in ROOM:
        pairs = zip(results, ROOM[kind](given, operands, results), strict=True)
        return Effect(tuple(Result(dense(shape), nbytes=least) for shape, least in pairs), copied)
    laid_out = LAID_OUT.get(kind)
    if laid_out is not None:
        return Effect(tuple(map(Result, laid_out(operands, results))), copied)
    if given.get("memory_format") != CONTIGUOUS and kind in LIKE_OPERANDS:
        like = [(each.shape, each.strides) for each in operands]
        return Effect(tuple(Result(elementwise(shape, like)) for shape in results), copied)
    if kind in IN_TERMS:
        return Effect((Result(dense(results[0]), nbytes=_terms_bytes(operands)),), copied)
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


_OURS = (OWN_NAMESPACE, "comm")
"""The namespaces of ops that take operands as they lie; those of other libraries get dense ones."""


def _terms_bytes(operands: Sequence[Placed]) -> int:
    """Returns the bytes of the terms of a loss, whose operands broadcast."""
    return max(math.prod(each.shape) * each.itemsize for each in operands)


def _is_unknown_view(kind: str) -> bool:
    return kind.startswith("aten.") and kind not in MARKED and may_alias(kind)


def _reshape(operand: Placed, shape: Shape) -> Effect:
    strides = reshaped(operand.shape, operand.strides, shape)
    return Effect((Result(dense(shape)) if strides is None else Result(strides, 0),))
