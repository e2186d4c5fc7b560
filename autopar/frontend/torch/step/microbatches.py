"""Microbatches: how a batch is cut along the first dimension of each of its tensors.

Where the rows don't divide, the first microbatches have one more, as `torch.tensor_split` cuts:
7 rows in 4 are 2, 2, 2 and 1. A program has static shapes, so the model is captured once for each
number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from autopar.base.errors import InvalidInputError

Rows = tuple[int, ...]
"""The first dimension of each tensor of a microbatch."""


@dataclass(frozen=True)
class Microbatches:
    """The microbatches of a batch.

    Attributes:
        bounds: For each tensor of the batch, where its microbatches begin, and its rows; empty if
            the batch isn't cut.
        weights: The weight of the loss of each microbatch in that of the batch.
    """

    bounds: tuple[tuple[int, ...], ...] = ()
    weights: tuple[float, ...] = (1.0,)

    @property
    def rows(self) -> tuple[Rows, ...]:
        """The rows of each microbatch; of one that is all of the batch, none."""
        cut = ([end - begin for begin, end in pairwise(bounds)] for bounds in self.bounds)
        return tuple(zip(*cut, strict=True)) or ((),)

    @property
    def ragged(self) -> bool:
        """Whether some have other sizes than others."""
        return len(set(self.rows)) > 1

    def ranges(self, number: int) -> Iterator[tuple[int, int]]:
        """Yields, for each tensor, the first row of a microbatch and the one behind its last."""
        for bounds in self.bounds:
            yield bounds[number], bounds[number + 1]


def cut_batch(labels: Sequence[str], tensors: Sequence[Tensor], count: int) -> Microbatches:
    """Returns how a batch is cut into microbatches.

    Args:
        labels: The names of its tensors.
        tensors: The tensors.
        count: The number of microbatches.

    Raises:
        InvalidInputError: If a tensor has no rows, or too few, or if the rows of tensors that
            don't divide aren't the same.
    """
    if count == 1:
        return Microbatches()
    for label, tensor in zip(labels, tensors, strict=True):
        if tensor.ndim == 0:
            raise InvalidInputError(
                f"accumulate={count} cuts the first dimension of each tensor of a batch, and"
                f" {label!r} has none; give it as an entry per row, as with expand"
            )
        if tensor.shape[0] < count:
            raise InvalidInputError(
                f"accumulate={count} cuts the first dimension of {label!r}, of shape"
                f" {list(tensor.shape)}, which has no {count} rows; give fewer microbatches"
            )
    rows = {label: tensor.shape[0] for label, tensor in zip(labels, tensors, strict=True)}
    odd = next((label for label, size in rows.items() if size % count), None)
    other = next((label for label, size in rows.items() if odd and size != rows[odd]), None)
    if odd is not None and other is not None:
        raise InvalidInputError(
            f"accumulate={count} doesn't divide the first dimension of {odd!r}, {rows[odd]}, and"
            f" that of {other!r} is {rows[other]}: which rows belong together can't be told; give"
            " tensors of as many rows, or rows that divide"
        )
    bounds = tuple(_bounds(size, count) for size in rows.values())
    shares = tuple((end - begin) / bounds[0][-1] for begin, end in pairwise(bounds[0]))
    return Microbatches(bounds, shares)


def _bounds(rows: int, count: int) -> tuple[int, ...]:
    least, more = divmod(rows, count)
    return tuple(number * least + min(number, more) for number in range(count + 1))
