"""Shards of writes at positions that an index holds.

A shard gets a block of what is written to and the index of the block's first entry, `offset`. What
belongs elsewhere goes to a spare entry behind the block, which is dropped. No block is empty:
nobody computes an empty result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autopar.runtime.kernels.lookups import in_range, local_rows
from autopar.runtime.kernels.naming import own

aten = torch.ops.aten


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
    rows, inside = local_rows(indices, offset, num_weights)
    inside = inside & (indices != padding_idx)
    width = grad_output.shape[-1]
    found = torch.where(inside.unsqueeze(-1), grad_output, torch.zeros_like(grad_output))
    total = grad_output.new_zeros((num_weights, width))
    return total.index_add(0, rows.reshape(-1), found.reshape(-1, width))


def _with_spare(self: Tensor, dim: int) -> Tensor:
    """Returns `self` with one more entry along `dim`."""
    dim %= self.ndim
    spare = self.new_zeros((*self.shape[:dim], 1, *self.shape[dim + 1 :]))
    return torch.cat([self, spare], dim)


def _or_spare(index: Tensor, offset: int, count: int) -> Tensor:
    """Returns positions in a block of `count` entries, with a spare entry for those elsewhere."""
    local = index - offset
    return torch.where((local < 0) | (local >= count), count, local)


def along_dim(overload: Any) -> Callable[..., Tensor]:
    """Returns the shard of a write along `dim` at `index`, the second and third arguments.

    Its `dim` has `extent` entries in all, if the program says so. With `wraps`, indices may be
    negative.
    """

    def shard(
        self: Tensor,
        dim: int,
        index: Tensor,
        *args: Any,
        offset: int,
        extent: int | None = None,
        wraps: bool = True,
        **kwargs: Any,
    ) -> Tensor:
        count = self.shape[dim]
        rows = _or_spare(in_range(index, extent, wraps), offset, count)
        written: Tensor = overload(_with_spare(self, dim), dim, rows, *args, **kwargs)
        return written.narrow(dim, 0, count)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter(name, keyword) for name in ("offset", "extent", "wraps")]
    theirs = [
        inspect.Parameter(
            argument.name,
            keyword if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
        for argument in overload._schema.arguments
    ]
    shard.__signature__ = inspect.Signature([*theirs, *own])  # type: ignore[attr-defined]
    return shard


def put(
    self: Tensor,
    index: Tensor,
    source: Tensor,
    accumulate: bool = False,
    *,
    extent: int,
    offset: int,
) -> Tensor:
    """A shard of `aten.put`: `self` holds the rows from `offset` on, of `extent` elements."""
    rows = _or_spare(in_range(index, extent, wraps=True), offset * self[0].numel(), self.numel())
    written = _with_spare(self.reshape(-1), 0).put(rows, source, accumulate)
    return written.narrow(0, 0, self.numel()).reshape(self.shape)


def index_put(
    self: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    *,
    dim: int,
    extent: int,
    offset: int,
) -> Tensor:
    """A shard of `aten.index_put`: `self` holds those from `offset` on of `dim`'s `extent`."""
    chosen = indices[dim]
    assert chosen is not None
    rows = _or_spare(in_range(chosen, extent, wraps=True), offset, self.shape[dim])
    local = [*indices[:dim], rows, *indices[dim + 1 :]]
    written: Tensor = aten.index_put.default(_with_spare(self, dim), local, values, accumulate)
    return written.narrow(dim, 0, self.shape[dim])


def select_backward(
    grad_output: Tensor, input_sizes: Sequence[int], dim: int, index: int, *, offset: int
) -> Tensor:
    """A shard of `aten.select_backward`: zeros, and the entry on the one process that has it."""
    return select_scatter(
        grad_output.new_zeros(input_sizes), grad_output, dim, index, offset=offset
    )


def select_scatter(self: Tensor, src: Tensor, dim: int, index: int, *, offset: int) -> Tensor:
    """A shard of `aten.select_scatter`: `self` holds the entries of `dim` from `offset` on."""
    if 0 <= index - offset < self.shape[dim]:
        return self.select_scatter(src, dim, index - offset)
    return self


WRITES = own(
    embedding_dense_backward=embedding_dense_backward,
    scatter=along_dim(aten.scatter.src),
    scatter_value=along_dim(aten.scatter.value),
    scatter_with=along_dim(aten.scatter.reduce),
    scatter_value_with=along_dim(aten.scatter.value_reduce),
    scatter_add=along_dim(aten.scatter_add.default),
    scatter_reduce=along_dim(aten.scatter_reduce.two),
    index_add=along_dim(aten.index_add.default),
    index_copy=along_dim(aten.index_copy.default),
    index_fill=along_dim(aten.index_fill.int_Scalar),
    index_fill_tensor=along_dim(aten.index_fill.int_Tensor),
    index_reduce=along_dim(aten.index_reduce.default),
    put=put,
    select_backward=select_backward,
    select_scatter=select_scatter,
    index_put=index_put,
)
"""The function behind each kind."""
