"""Buckets: what sums take that travel together.

A collective takes a latency however small it is, so sums that nobody waits for are joined
(`partition.coalesce`): the flat operands are copied into a bucket, which is reduced as one. Then a
sum takes its part of the bucket's seconds, and the copy.

The seconds of a reduction grow ever slower with its bytes. So a sum takes at least the part of the
largest bucket there can be that its bytes are; and it adds at least as much to any bucket as to the
largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autopar.cost.collectives import Border, CommunicationModel
from autopar.cost.reshard.reshards import Move, Reshard
from autopar.ir.layout import Layout

BUCKET_BYTES = 25 * 2**20
"""Bytes of a bucket at most: DistributedDataParallel's default."""

SUMS = ("all_reduce", "reduce_scatter")

Lane = tuple[str, tuple[str, ...]]
"""Kind and mesh axes of sums that travel together."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A reduction that may be joined with others.

    Attributes:
        kind: `all_reduce` or `reduce_scatter`.
        axes: The mesh axes of the group.
        monoid: The reduction.
        nbytes: Bytes of the operand on a device.
        stored_bytes: Bytes of the result.
        seconds: What it takes alone.
    """

    kind: str
    axes: tuple[str, ...]
    monoid: str
    nbytes: int
    stored_bytes: int
    seconds: float


def is_worth_joining(model: CommunicationModel, nbytes: int, latency: float) -> bool:
    """Returns whether a copy into a bucket takes less time than a collective's latency."""
    return 0 < model.local_copy(nbytes) < latency


def sums_of(
    model: CommunicationModel, source: Layout, reshard: Reshard, itemsize: int
) -> Iterator[tuple[Move, Sum | None]]:
    """Yields the moves of a reshard, each with the sum that it is, if that may be joined.

    Args:
        model: Predicts seconds.
        source: Where the reshard begins.
        reshard: The moves.
        itemsize: Bytes per element.
    """
    before = source
    for move in reshard.moves:
        yield move, _sum(model, before, move, itemsize) if move.kind in SUMS else None
        before = move.layout


def _sum(model: CommunicationModel, before: Layout, move: Move, itemsize: int) -> Sum | None:
    shapes = before.local_shape, move.layout.local_shape
    sizes = [[size for size in shape if isinstance(size, int)] for shape in shapes]
    if any(len(known) < len(shape) for known, shape in zip(sizes, shapes, strict=True)):
        return None
    nbytes, stored = (math.prod(known) * itemsize for known in sizes)
    if move.kind == "reduce_scatter":
        place = move.target
        starts = place is not None and place.dim == 0 and place.outer == 1
        if not starts or nbytes != stored * model.members(move.axes):
            return None
    if not is_worth_joining(model, nbytes, model.all_reduce(0, move.axes)):
        return None
    return Sum(move.kind, move.axes, move.monoid, nbytes, stored, move.seconds)


def bucket_seconds(
    model: CommunicationModel, lane: Lane, nbytes: float, stored_bytes: float
) -> float:
    """Returns the seconds of a bucket of several sums: its copy and its reduction.

    Args:
        model: Predicts seconds.
        lane: What the sums have in common.
        nbytes: Bytes of the operands.
        stored_bytes: Bytes of the results.
    """
    kind, axes = lane
    price = model.all_reduce if kind == "all_reduce" else model.reduce_scatter
    copies = model.local_copy(nbytes) + model.local_copy(stored_bytes)
    return model.cluster.launch_seconds + copies + price(nbytes, axes)


class SharedModel(CommunicationModel):
    """Prices sums as parts of buckets.

    Args:
        model: Prices everything else, and sums that are alone.
        bucket_bytes: Of a bucket at most: then no sum is charged more than it takes.
    """

    def __init__(self, model: CommunicationModel, bucket_bytes: float) -> None:
        super().__init__(model.cluster, model.mesh, model.order)
        self.bucket_bytes = max(1.0, min(bucket_bytes, BUCKET_BYTES))

    def all_reduce(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns the seconds of an all_reduce, or of its part of a bucket and the copy."""
        return self._part("all_reduce", nbytes, axes)

    def reduce_scatter(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns the seconds of a reduce_scatter, or of its part of a bucket and the copy."""
        return self._part("reduce_scatter", nbytes, axes)

    def borders(self, axes: Sequence[str]) -> list[Border]:
        """Returns the borders, over which a message has no latency of its own."""
        return [Border(0.0, each.beta, each.inner) for each in super().borders(axes)]

    def seconds_of(self, move: Move, reduction: Sum | None) -> float:
        """Returns the seconds of a move of a reshard, by `sums_of`."""
        if reduction is None:
            return move.seconds
        return self._part(reduction.kind, reduction.nbytes, reduction.axes) + self.local_copy(
            reduction.stored_bytes
        )

    def _part(self, kind: str, nbytes: float, axes: Sequence[str]) -> float:
        alone, copy = self._seconds(kind, nbytes, axes), self.local_copy(nbytes)
        if nbytes > self.bucket_bytes or not 0 < copy < self._seconds("all_reduce", 0, axes):
            return alone
        return min(alone, nbytes * self._rate(kind, axes) + copy)

    def _rate(self, kind: str, axes: Sequence[str]) -> float:
        """Returns the seconds per byte of the largest bucket."""
        return self._seconds(kind, self.bucket_bytes, axes) / self.bucket_bytes


class AddedModel(SharedModel):
    """Prices sums as what they add at least to a bucket, whatever else is in it.

    Args:
        model: Prices everything else, and sums that are alone.
    """

    def __init__(self, model: CommunicationModel) -> None:
        super().__init__(model, BUCKET_BYTES)

    def _rate(self, kind: str, axes: Sequence[str]) -> float:
        """Returns the seconds per byte by which the largest bucket grows."""
        most = self.bucket_bytes
        return (self._seconds(kind, 2 * most, axes) - self._seconds(kind, most, axes)) / most


class FreeSums(CommunicationModel):
    """Prices sums as if they took nothing.

    Args:
        model: Prices everything else.
    """

    def __init__(self, model: CommunicationModel) -> None:
        super().__init__(model.cluster, model.mesh, model.order)

    def all_reduce(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns no seconds."""
        return 0.0

    def reduce_scatter(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns no seconds."""
        return 0.0

    def borders(self, axes: Sequence[str]) -> list[Border]:
        """Returns the borders, which sums cross for nothing."""
        return [Border(0.0, 0.0, each.inner) for each in super().borders(axes)]
