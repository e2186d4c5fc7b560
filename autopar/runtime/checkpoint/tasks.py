"""Which stored pieces of a checkpoint hold what a rank wants, and where in its memory that goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from autopar.runtime.checkpoint.index import Index, StoredPiece
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.regions import Region


@dataclass(frozen=True)
class Target:
    """A rectangle of a tensor that is wanted, and the memory of this process that it goes to."""

    region: Region
    tensors: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Copy:
    """Copies a part of a piece into a part of memory.

    Attributes:
        source: Where it begins in the piece, per dimension.
        target: The memory.
    """

    source: tuple[int, ...]
    target: Tensor


@dataclass(frozen=True)
class Task:
    """A piece of a file that is to be read.

    Attributes:
        name: The tensor's.
        dtype: What the file has.
        piece: Where it is.
        copies: What becomes of it.
    """

    name: str
    dtype: torch.dtype
    piece: StoredPiece
    copies: Sequence[Copy]


def tasks_of(name: str, index: Index, targets: Sequence[Target]) -> Iterator[Task]:
    """Yields what is to be read of a tensor's pieces; of those that nobody wants, nothing."""
    tensor = index.tensors[name]
    for piece in tensor.pieces:
        copies = [
            Copy(source, within(memory, at, sizes))
            for target in targets
            for source, at, sizes in _overlap(piece, target.region)
            for memory in target.tensors
        ]
        if copies:
            yield Task(name, TORCH_DTYPES[tensor.dtype], piece, copies)


def _overlap(
    piece: StoredPiece, region: Region
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Yields where what both have begins in the piece and in the region, and its shape, if any."""
    spans = list(zip(piece.at, piece.sizes, region.offsets, region.sizes, strict=True))
    starts = [max(one, other) for one, _, other, _ in spans]
    ends = [min(one + n, other + m) for one, n, other, m in spans]
    sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
    if all(size > 0 for size in sizes):
        yield (
            tuple(start - one for start, (one, *_) in zip(starts, spans, strict=True)),
            tuple(start - other for start, (_, _, other, _) in zip(starts, spans, strict=True)),
            sizes,
        )


def within(tensor: Tensor, at: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Returns a view of a rectangle of a tensor."""
    for dim, (start, size) in enumerate(zip(at, sizes, strict=True)):
        tensor = tensor.narrow(dim, start, size)
    return tensor
