"""Samples of large tensors: a twentieth of one per turn, all of it within twenty turns.

Ranks that hold equal tensors take equal samples, however their tensors lie in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

PERIOD = 20
"""Turns within which a sample has been taken of every element."""

WHOLE = 1 << 20
"""Bytes of a batch up to which all of it is looked at."""

SMALL = 1 << 16
"""Bytes of a tensor up to which all of it is looked at in any batch."""

CHUNK = 1 << 12
"""Bytes that follow one another in a sample, where a tensor is dense."""


def sampled_batch(
    tensors: Mapping[str, Tensor], turns: Mapping[str, int]
) -> dict[str, tuple[Tensor, ...]]:
    """Returns parts of each tensor of a batch: all of a small batch, samples of a large one.

    Args:
        tensors: By label.
        turns: Of those among them that are looked at, the number of the sample.
    """
    seen = {label: tensors[label] for label in turns}
    small = sum(each.nbytes for each in seen.values()) <= WHOLE
    return {
        label: (each,) if small or each.nbytes <= SMALL else sampled(each, turns[label])
        for label, each in seen.items()
    }


def sampled(tensor: Tensor, turn: int) -> tuple[Tensor, ...]:
    """Returns views of about a twentieth of a tensor, other ones for each of 20 turns.

    Chunks are taken at equal distances, so that of a long row there is something in every sample.
    """
    dim, count = _cut(tensor)
    if dim is None:
        # Many short dimensions: it may have to be copied.
        return sampled(tensor.reshape(-1), turn)
    chunks = tensor.shape[dim] // count
    whole = chunks * count
    shape = (*tensor.shape[:dim], chunks, count, *tensor.shape[dim + 1 :])
    main = tensor.narrow(dim, 0, whole).view(shape)
    taken = tuple(slice(None) for _ in range(dim))
    rest = tensor.narrow(dim, whole, tensor.shape[dim] - whole)
    return (main[(*taken, slice(turn % PERIOD, None, PERIOD))], *([rest] if rest.numel() else []))


def _cut(tensor: Tensor) -> tuple[int | None, int]:
    """Returns the last dimension that has enough chunks, and how many entries of it make one."""
    inner = tensor.element_size()
    for dim in reversed(range(tensor.ndim)):
        count = max(1, CHUNK // inner)
        if tensor.shape[dim] // count >= PERIOD or tensor.ndim == 1:
            return dim, min(count, max(1, tensor.shape[dim] // PERIOD))
        inner *= tensor.shape[dim]
    return None, 0
