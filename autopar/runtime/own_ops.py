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
from autopar.runtime.windows import window


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


def embedding_dense_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    *,
    offset: int,
) -> Tensor:
    """A shard of `aten.embedding_dense_backward`: the gradient of `num_weights` rows.

    `scale_grad_by_freq` must be false, as the frequency counts rows over the whole batch.
    """
    rows, inside = _local_rows(indices, offset, num_weights)
    inside = inside & (indices != padding_idx)
    width = grad_output.shape[-1]
    found = torch.where(inside.unsqueeze(-1), grad_output, torch.zeros_like(grad_output))
    total = grad_output.new_zeros((num_weights, width))
    if num_weights == 0:
        return total
    return total.index_add(0, rows.reshape(-1), found.reshape(-1, width))


def _writable(self: Tensor, dim: int, index: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """Returns `self` with one more entry along `dim`, and indices that send strays there."""
    size = self.shape[dim]
    dim %= self.ndim
    spare = self.new_zeros((*self.shape[:dim], 1, *self.shape[dim:][1:]))
    local = index - offset
    stray = (local < 0) | (local >= size)
    return torch.cat([self, spare], dim), torch.where(stray, size, local)


def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor, *, offset: int) -> Tensor:
    """A shard of `aten.scatter.src`: `self` holds the entries of `dim` from `offset` on."""
    extended, rows = _writable(self, dim, index, offset)
    return extended.scatter(dim, rows, src).narrow(dim, 0, self.shape[dim])


def scatter_value(self: Tensor, dim: int, index: Tensor, value: float, *, offset: int) -> Tensor:
    """A shard of `aten.scatter.value`: `self` holds the entries of `dim` from `offset` on."""
    extended, rows = _writable(self, dim, index, offset)
    return extended.scatter(dim, rows, value).narrow(dim, 0, self.shape[dim])


def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor, *, offset: int) -> Tensor:
    """A shard of `aten.scatter_add`: `self` holds the entries of `dim` from `offset` on."""
    extended, rows = _writable(self, dim, index, offset)
    return extended.scatter_add(dim, rows, src).narrow(dim, 0, self.shape[dim])


def scatter_reduce(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    offset: int,
) -> Tensor:
    """A shard of `aten.scatter_reduce.two`: `self` holds the entries of `dim` from `offset` on."""
    extended, rows = _writable(self, dim, index, offset)
    found = extended.scatter_reduce(dim, rows, src, reduce, include_self=include_self)
    return found.narrow(dim, 0, self.shape[dim])


OWN_OPS: Mapping[str, Callable[..., Any]] = {
    "autopar.to_partial": to_partial,
    "autopar.window": window,
    "autopar.embedding": embedding,
    "autopar.index_select": index_select,
    "autopar.gather": gather,
    "autopar.embedding_dense_backward": embedding_dense_backward,
    "autopar.scatter": scatter,
    "autopar.scatter_value": scatter_value,
    "autopar.scatter_add": scatter_add,
    "autopar.scatter_reduce": scatter_reduce,
}
"""The function behind each op kind."""
