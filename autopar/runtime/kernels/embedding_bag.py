"""Shards of bags of an embedding: a shard has the rows of the table from `offset` on."""

from __future__ import annotations

import torch
from torch import Tensor

from autopar.runtime.kernels.lookups import local_rows
from autopar.runtime.kernels.naming import own

aten = torch.ops.aten

MEAN, MAX = 1, 2
"""The `mode` of means and maxima; 0 is that of sums."""


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    extent: int,
    offset: int,
) -> tuple[Tensor, ...]:
    """A shard of `aten._embedding_bag` of sums or means, of a table of `extent` rows.

    Rows elsewhere weigh nothing. The other results don't depend on the table; they are those of a
    table without values.
    """
    nothing = weight.new_zeros((extent, 1))
    _, *counts = aten._embedding_bag.default(
        nothing,
        indices,
        offsets,
        mode=mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=padding_idx,
    )
    rows, inside = _rows(indices, offset, len(weight), padding_idx)
    weigh = inside.to(weight.dtype)
    if per_sample_weights is not None:
        weigh = weigh * per_sample_weights
    # A shard without rows adds nothing of a row that it makes up.
    table = weight if len(weight) else weight.new_zeros((1, weight.shape[1]))
    total, *_ = aten._embedding_bag.default(
        table, rows, offsets, per_sample_weights=weigh, include_last_offset=include_last_offset
    )
    if mode == MEAN:
        total = total / counts[1].clamp(min=1).unsqueeze(-1)
    return (total, *counts)


def _rows(indices: Tensor, offset: int, count: int, padding_idx: int) -> tuple[Tensor, Tensor]:
    """Returns the rows in the block, and which of them are read: those in it but the padding."""
    rows, inside = local_rows(indices, offset, max(1, count))
    return rows, inside & (indices != padding_idx) & (count > 0)


def _or_spare(indices: Tensor, offset: int, count: int, padding_idx: int) -> Tensor:
    rows, inside = _rows(indices, offset, count, padding_idx)
    return torch.where(inside, rows, count)


def _spared(
    indices: Tensor, maxima: Tensor, mode: int, offset: int, count: int, padding_idx: int
) -> tuple[Tensor, Tensor]:
    """Returns the rows that were read and those of maxima, a spare one behind the last for others.

    Only the mode of maxima knows theirs.
    """
    rows = _or_spare(indices, offset, count, padding_idx)
    return rows, _or_spare(maxima, offset, count, -1) if mode == MAX else maxima


def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
    *,
    offset: int,
) -> Tensor:
    """A shard of `aten._embedding_bag_backward`; rows elsewhere go to a spare one."""
    rows, maxima = _spared(indices, maximum_indices, mode, offset, num_weights, padding_idx)
    head = (grad, rows, offsets, offset2bag, bag_size, maxima)
    tail = (num_weights + 1, False, mode, False, per_sample_weights)
    found: Tensor = aten._embedding_bag_backward.default(*head, *tail)
    return found[:num_weights]


def embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
    *,
    offset: int,
) -> Tensor:
    """A shard of `aten._embedding_bag_dense_backward`; rows elsewhere go to a spare one."""
    rows, maxima = _spared(indices, maximum_indices, mode, offset, num_weights, padding_idx)
    head = (grad, rows, offset2bag, bag_size, maxima)
    tail = (num_weights + 1, False, mode, per_sample_weights)
    found: Tensor = aten._embedding_bag_dense_backward.default(*head, *tail)
    return found[:num_weights]


def embedding_bag_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
    *,
    offset: int,
) -> Tensor:
    """A shard of `aten._embedding_bag_per_sample_weights_backward`: zero for rows elsewhere."""
    rows, inside = _rows(indices, offset, len(weight), padding_idx)
    operands = (grad, weight, rows, offsets, offset2bag, mode)
    found = aten._embedding_bag_per_sample_weights_backward.default(*operands)
    return torch.where(inside, found, torch.zeros_like(found))


BAGS = own(
    embedding_bag=embedding_bag,
    embedding_bag_backward=embedding_bag_backward,
    embedding_bag_dense_backward=embedding_bag_dense_backward,
    embedding_bag_weights_backward=embedding_bag_weights_backward,
)
"""The function behind each kind."""
