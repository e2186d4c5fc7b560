"""Relaxed: seconds that a reshard takes at least, if only what axes do counts, and not where.

An axis splits some dimension, has a sum pending, or is free. Between such states lead the moves
that there are, with all the room they could wish for: whatever is split is next to one another, and
pieces divide evenly. So there are few states, and the distances between all of them are known at
once. A real path takes no less, and most often just as much: it only has to be found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.cost.collectives import CommunicationModel

Axes = tuple[str, ...]
State = tuple[int, ...]
"""What each axis does."""

FREE, SPLIT, PENDING = 0, 1, 2

COLLECTIVES = {
    (SPLIT, FREE): "all_gather",
    (PENDING, FREE): "all_reduce",
    (PENDING, SPLIT): "reduce_scatter",
}
"""What makes axes do something else that do the same."""

LOCAL, PERMUTE, REBLOCK = "local", "permute", "reblock"

MOST_AXES = 5
"""With more axes there are too many states."""


class _Edge(NamedTuple):
    """A move between states; parts are those into which the tensor is split."""

    before: int
    after: int
    kind: str
    axes: Axes
    parts_before: int
    parts_after: int


class Relaxed:
    """Distances between what the axes of a mesh do.

    Args:
        model: Predicts seconds.
        axes: The axes that layouts may split.
    """

    def __init__(self, model: CommunicationModel, axes: Axes) -> None:
        self.model = model
        self.axes = axes
        self._unit: dict[str, int] = {axis: 3**at for at, axis in enumerate(reversed(axes))}
        self._tables: dict[tuple[int, bool], NDArray[np.float64]] = {}

    def number(self, split: Iterable[str], pending: Iterable[str]) -> int:
        """Returns the number of a state: the axes that split, and those with sums pending."""
        units = self._unit
        return SPLIT * sum(units[a] for a in split) + PENDING * sum(units[a] for a in pending)

    def seconds_to(self, number: int, nbytes: int, *, is_even: bool) -> list[float]:
        """Returns the least seconds from each state to one.

        Args:
            number: Of the state to reach.
            nbytes: Bytes of the whole tensor.
            is_even: Whether layouts divide evenly. Where they don't, fewer blocks may make up a
                larger one than there are processes that have one.
        """
        key = (nbytes, is_even)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._distances(nbytes, is_even)
        found: list[float] = table[:, number].tolist()
        return found

    def _distances(self, nbytes: int, is_even: bool) -> NDArray[np.float64]:
        """Returns the seconds of the fastest paths: Floyd and Warshall's algorithm."""
        count = 3 ** len(self.axes)
        table = np.full((count, count), math.inf)
        np.fill_diagonal(table, 0.0)
        for edge in self._edges:
            at = edge.before, edge.after
            table[at] = min(table[at], self._price(edge, nbytes, is_even))
        for middle in range(count):
            np.minimum(table, table[:, middle : middle + 1] + table[middle], out=table)
        return table

    def _price(self, edge: _Edge, nbytes: int, is_even: bool) -> float:
        """Returns the seconds of a move: of the collective, and of storing its result."""
        model, kind = self.model, edge.kind
        has, left = nbytes / edge.parts_before, nbytes / edge.parts_after
        match kind:
            case "local":
                return 0.0
            case "all_gather":
                seconds = model.all_gather(left, edge.axes)
            case "all_reduce":
                seconds = model.all_reduce(has, edge.axes)
            case "reduce_scatter":
                seconds = model.reduce_scatter(has, edge.axes)
            case _:
                grows = is_even and kind == REBLOCK
                messages = math.ceil(edge.parts_before / edge.parts_after) if grows else 1
                seconds = model.point_to_point(left, edge.axes, messages)
        return seconds + model.local_copy(left)

    @cached_property
    def _edges(self) -> list[_Edge]:
        states = list(product((FREE, SPLIT, PENDING), repeat=len(self.axes)))
        return [
            _Edge(
                self._number(before),
                self._number(after),
                kind,
                tuple(axis for axis, a, b in zip(self.axes, before, after, strict=True) if a != b),
                self._count(before, SPLIT),
                self._count(after, SPLIT),
            )
            for before, after in product(states, states)
            if before != after
            for kind in self._kinds(before, after)
        ]

    def _kinds(self, before: State, after: State) -> Iterator[str]:
        """Yields the moves that lead from a state to another."""
        changes = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
        if len(set(changes)) == 1:
            if changes[0] in COLLECTIVES:
                yield COLLECTIVES[changes[0]]
            if len(changes) == 1 and changes[0][0] == FREE:
                yield LOCAL
        if all(self._count(before, what) == self._count(after, what) for what in (SPLIT, PENDING)):
            yield PERMUTE
        elif all(PENDING not in change for change in changes):
            yield REBLOCK

    def _number(self, state: State) -> int:
        return self.number(self._which(state, SPLIT), self._which(state, PENDING))

    def _count(self, state: State, what: int) -> int:
        return self.model.mesh.axes_size(self._which(state, what))

    def _which(self, state: Sequence[int], what: int) -> Axes:
        return tuple(axis for axis, does in zip(self.axes, state, strict=True) if does == what)
