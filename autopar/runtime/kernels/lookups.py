"""Shards of lookups.

A shard of a lookup gets a block of the table and the index of the block's first entry, `offset`.
Indices outside the block find zero, so the shards' results add up to the whole lookup's. No block
is empty: a process without a part of a sum contributes zeros and looks nothing up. Of `extent`
entries, an index outside all blocks is an error, as on one device; programs of older versions don't
say how many entries there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autopar.runtime.kernels.naming import own


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    extent: int | None = None,
    offset: int,
) -> Tensor:
    """A shard of `aten.embedding`: `weight` holds the rows from `offset` on.

    `padding_idx`, `scale_grad_by_freq` and `sparse` concern the gradient alone.
    """
    rows, inside = local_rows(in_range(indices, extent), offset, weight.shape[0])
    found = weight[rows]
    return torch.where(inside.unsqueeze(-1), found, torch.zeros_like(found))


def local_rows(index: Tensor, offset: int, count: int) -> tuple[Tensor, Tensor]:
    """Returns where each index lies in the block, clamped into it, and whether it lies in it."""
    local = index - offset
    return local.clamp(0, count - 1), (local >= 0) & (local < count)


def in_range(index: Tensor, extent: int | None, wraps: bool = False) -> Tensor:
    """Returns indices of `extent` entries, if it is known how many there are.

    Args:
        index: The indices.
        extent: How many entries there are.
        wraps: Whether negative ones count from behind the last entry.

    Raises:
        RuntimeError: If there is no such entry; on an accelerator, where the host isn't waited for,
            it comes with what is computed later.
    """
    if extent is None:
        return index
    found = torch.where(index < 0, index + extent, index) if wraps else index
    inside = ((found >= 0) & (found < extent)).all()
    torch._assert_async(inside, f"an index is out of range: there are {extent} entries")
    return found


def index_select(
    self: Tensor, dim: int, index: Tensor, *, extent: int | None = None, offset: int
) -> Tensor:
    """A shard of `aten.index_select`: `self` holds the entries of `dim` from `offset` on."""
    dim %= self.ndim
    rows, inside = local_rows(in_range(index.reshape(-1), extent), offset, self.shape[dim])
    found = self.index_select(dim, rows)
    mask = inside.reshape(-1, *(1,) * (self.ndim - dim - 1))
    return torch.where(mask, found, torch.zeros_like(found))


def select(self: Tensor, dim: int, index: int, *, offset: int) -> Tensor:
    """A shard of `aten.select.int`: the entry on the one process that has it, zero elsewhere."""
    if 0 <= index - offset < self.shape[dim]:
        return self.select(dim, index - offset)
    dim %= self.ndim
    return self.new_zeros((*self.shape[:dim], *self.shape[dim + 1 :]))


def gather(
    self: Tensor,
    dim: int,
    index: Tensor,
    *,
    sparse_grad: bool = False,
    extent: int | None = None,
    offset: int,
) -> Tensor:
    """A shard of `aten.gather`: `self` holds the entries of `dim` from `offset` on."""
    rows, inside = local_rows(in_range(index, extent), offset, self.shape[dim])
    found = self.gather(dim, rows)
    return torch.where(inside, found, torch.zeros_like(found))


def take(self: Tensor, index: Tensor, *, extent: int, offset: int) -> Tensor:
    """A shard of `aten.take`: `self` holds the rows from `offset` on, of `extent` elements."""
    at, inside = local_rows(
        in_range(index, extent, wraps=True), offset * self[0].numel(), self.numel()
    )
    found = self.take(at)
    return torch.where(inside, found, torch.zeros_like(found))


def index(
    self: Tensor, indices: Sequence[Tensor | None], *, dim: int, extent: int, offset: int
) -> Tensor:
    """A shard of `aten.index.Tensor`: `self` holds those from `offset` on of `dim`'s `extent`."""
    chosen = indices[dim]
    assert chosen is not None
    rows, inside = local_rows(in_range(chosen, extent, wraps=True), offset, self.shape[dim])
    found = torch.ops.aten.index.Tensor(self, [*indices[:dim], rows, *indices[dim + 1 :]])
    return torch.where(_over(inside, indices, found.ndim), found, torch.zeros_like(found))


def _over(inside: Tensor, indices: Sequence[Tensor | None], rank: int) -> Tensor:
    """Returns a mask over the indices as one over what they select, a tensor of this rank.

    Where indices of neighbouring dimensions stood, there is what they select; else it comes first.
    """
    given = [at for at, item in enumerate(indices) if item is not None]
    chosen = max(item.ndim for item in indices if item is not None)
    lead = given[0] if given == list(range(given[0], given[-1] + 1)) else 0
    return inside.reshape((*inside.shape, *(1,) * (rank - lead - chosen)))


LOOKUPS = own(
    embedding=embedding,
    index_select=index_select,
    select=select,
    gather=gather,
    take=take,
    index=index,
)
"""The function behind each kind."""
