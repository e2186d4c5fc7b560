"""The ops that are autopar's own: shards of lookups, and pieces of pending reductions.

A shard of a lookup gets a block of rows and the index of the block's first row, `offset`. Rows
outside the block contribute zero, so the shards' results add up to the whole lookup's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from autopar.runtime.reduction import identity


def to_partial(self: Tensor, monoid: str, index: int) -> Tensor:
    """Keeps a value on the first process of an axis; the others get the reduction's identity.

    Args:
        self: The value.
        monoid: The reduction.
        index: The process's position along the axis.
    """
    return self if index == 0 else torch.full_like(self, identity(monoid, self.dtype))


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    offset: int,
) -> Tensor:
    """A shard of `aten.embedding`: `weight` holds the rows from `offset` on.

    `padding_idx`, `scale_grad_by_freq` and `sparse` concern the gradient alone.
    """
    rows, inside = _local_rows(indices, offset, weight.shape[0])
    if weight.shape[0] == 0:
        return weight.new_zeros((*indices.shape, *weight.shape[1:]))
    found = weight[rows]
    return torch.where(inside.unsqueeze(-1), found, torch.zeros_like(found))


def _local_rows(index: Tensor, offset: int, count: int) -> tuple[Tensor, Tensor]:
    """Returns where each index lies in the block, clamped into it, and whether it lies in it."""
    local = index - offset
    return local.clamp(0, max(0, count - 1)), (local >= 0) & (local < count)


def index_select(self: Tensor, dim: int, index: Tensor, *, offset: int) -> Tensor:
    """A shard of `aten.index_select`: `self` holds the entries of `dim` from `offset` on."""
    dim %= self.ndim
    rows, inside = _local_rows(index.reshape(-1), offset, self.shape[dim])
    if self.shape[dim] == 0:
        return self.new_zeros((*self.shape[:dim], len(rows), *self.shape[dim + 1 :]))
    found = self.index_select(dim, rows)
    mask = inside.reshape(-1, *(1,) * (self.ndim - dim - 1))
    return torch.where(mask, found, torch.zeros_like(found))


def gather(
    self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False, offset: int
) -> Tensor:
    """A shard of `aten.gather`: `self` holds the entries of `dim` from `offset` on."""
    rows, inside = _local_rows(index, offset, self.shape[dim])
    if self.shape[dim] == 0:
        return self.new_zeros(index.shape)
    found = self.gather(dim, rows)
    return torch.where(inside, found, torch.zeros_like(found))


OWN_OPS: Mapping[str, Callable[..., Any]] = {
    "autopar.to_partial": to_partial,
    "autopar.embedding": embedding,
    "autopar.index_select": index_select,
    "autopar.gather": gather,
}
"""The function behind each op kind."""
