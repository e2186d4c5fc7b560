"""Shards of products of experts: of the experts from `offset` on, and the rows from `row` on.

All rows are sorted by expert, and `offs` has where each expert's end. Rows of experts elsewhere are
zero, so the shards' results add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from autopar.runtime.kernels.naming import own


def grouped_mm(
    input: Tensor, weight: Tensor, offs: Tensor, *, offset: int = 0, row: int = 0
) -> Tensor:
    """A shard of `transformers.grouped_mm_fallback`, of [m, k] and [g, k, n]."""
    found = input.new_zeros((len(input), weight.shape[2]))
    for matrix, rows in _groups(weight, offs - row, offset, len(input)):
        torch.mm(input[rows], matrix, out=found[rows])
    return found


def grouped_mm_backward(
    input: Tensor,
    weight: Tensor,
    offs: Tensor,
    grad_output: Tensor,
    *,
    offset: int = 0,
    row: int = 0,
) -> tuple[Tensor, Tensor]:
    """A shard of `transformers.grouped_mm_fallback_backward`: gradients of rows and experts."""
    of_input = torch.zeros_like(input, memory_format=torch.contiguous_format)
    of_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
    groups = _groups(weight, offs - row, offset, len(input))
    for gradient, (matrix, rows) in zip(of_weight, groups, strict=True):
        torch.mm(grad_output[rows], matrix.T, out=of_input[rows])
        torch.mm(input[rows].T, grad_output[rows], out=gradient)
    return of_input, of_weight


def _groups(
    weight: Tensor, offs: Tensor, offset: int, count: int
) -> Iterator[tuple[Tensor, slice]]:
    """Yields each expert's matrix and its rows, of so many."""
    ends = [0, *offs.clamp(0, count).tolist()]
    for at, matrix in enumerate(weight, offset):
        yield matrix, slice(ends[at], ends[at + 1])


EXPERTS = own(
    grouped_mm=grouped_mm,
    grouped_mm_backward=grouped_mm_backward,
)
"""The function behind each kind."""
