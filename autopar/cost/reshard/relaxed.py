"""Relaxed: seconds that a reshard takes at least, if only what axes do counts, and not where.

An axis splits what it should, splits something else, has a sum pending, or is free. Between such
states lead the moves that there are, with all the room they could need: whatever is split is
next to one another, and pieces divide evenly. So there are few states, and the distances from all
of them are known at once. A real path takes no less, and most often just as much: it only has to be
found.

Without it the search of GPT-2 on 4x4x4x4 leaves 7.3% open instead of 0.96%, and takes half as long
again (`benchmarks/without.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.cost.collectives import CommunicationModel

Axes = tuple[str, ...]
State = tuple[int, ...]
"""What each axis does."""

FREE, SETTLED, PENDING, ASTRAY = range(4)

NONE, LOCAL, ALL_TO_ALL, ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, PERMUTE, REDISTRIBUTE = range(8)

KINDS = (
    "",
    "local",
    "all_to_all",
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "permute",
    "redistribute",
)
"""Their names."""

MOST_AXES = 4
"""With more axes there are too many states."""


Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]


class _Move(NamedTuple):
    """A move between states; parts are those into which the tensor is split."""

    kind: str
    axes: Axes
    parts_before: int
    parts_after: int


_Moves = tuple[list[_Move], Whole]
"""Different moves, and which of them leads from each state to each other."""


class Relaxed:
    """Distances between what the axes of a mesh do.

    Args:
        model: Predicts seconds.
        axes: The axes that layouts may split.
    """

    def __init__(self, model: CommunicationModel, axes: Axes) -> None:
        self.model = model
        self.axes = axes
        self._unit: dict[str, int] = {axis: 4**digit for digit, axis in enumerate(reversed(axes))}
        self._prices: dict[tuple[int, bool], NDArray[np.float64]] = {}
        self._distances: dict[tuple[int, int, bool], list[float]] = {}

    def number(self, split: Iterable[str], pending: Iterable[str], astray: Iterable[str]) -> int:
        """Returns the number of a state.

        Args:
            split: The axes that split.
            pending: Those that have sums pending.
            astray: Those that split something else than they should.
        """
        more = zip((SETTLED, PENDING, ASTRAY - SETTLED), (split, pending, astray), strict=True)
        return sum(what * self._unit[axis] for what, axes in more for axis in axes)

    def seconds_to(self, number: int, nbytes: int, *, is_even: bool) -> list[float]:
        """Returns the least seconds from each state to one.

        Args:
            number: Of the state to reach.
            nbytes: Bytes of the whole tensor.
            is_even: Whether layouts divide evenly. Where they don't, fewer blocks may make up a
                larger one than there are processes that have one.
        """
        key = (number, nbytes, is_even)
        found = self._distances.get(key)
        if found is None:
            found = self._distances[key] = self._shortest(*key)
        return found

    def _shortest(self, number: int, nbytes: int, is_even: bool) -> list[float]:
        """Returns the seconds of the fastest paths: Bellman and Ford's algorithm."""
        prices = self._prices.get((nbytes, is_even))
        if prices is None:
            prices = self._prices[nbytes, is_even] = self._priced(nbytes, is_even)
        seconds = np.full(len(prices), math.inf)
        seconds[number] = 0.0
        known = None
        while known is None or not np.array_equal(seconds, known):
            known = seconds
            seconds = np.minimum(known, (prices + known).min(axis=1))
        distances: list[float] = seconds.tolist()
        return distances

    def _priced(self, nbytes: int, is_even: bool) -> NDArray[np.float64]:
        """Returns the seconds of the fastest move from each state to each other."""
        options = (
            np.array([self._price(move, nbytes, is_even) for move in moves])[index]
            for moves, index in self._moves
        )
        fastest: NDArray[np.float64] = np.minimum(*options)
        return fastest

    def _price(self, move: _Move, nbytes: int, is_even: bool) -> float:
        """Returns the seconds of a move: of the collective, and of storing its result."""
        model, kind = self.model, move.kind
        has, left = nbytes / move.parts_before, nbytes / move.parts_after
        match kind:
            case "":
                return math.inf
            case "local":
                return 0.0
            case "all_gather":
                seconds = model.all_gather(left, move.axes)
            case "all_reduce":
                seconds = model.all_reduce(has, move.axes)
            case "reduce_scatter":
                seconds = model.reduce_scatter(has, move.axes)
            case "all_to_all":
                seconds = model.all_to_all(has, move.axes)
            case _:
                grows = is_even and kind == "redistribute"
                messages = math.ceil(move.parts_before / move.parts_after) if grows else 1
                seconds = model.point_to_point(left, move.axes, messages)
        return seconds + model.local_copy(left)

    @cached_property
    def _moves(self) -> tuple[_Moves, _Moves]:
        """The collective, and the exchange of pieces, that leads from each state to each other."""
        count = len(self.axes)
        states = np.array(list(product(range(4), repeat=count)), dtype=np.int64)
        before, after = states[:, None], states[None]
        changes = before != after
        sizes = np.array([self.model.mesh.axis_size(axis) for axis in self.axes], dtype=np.int64)
        splits = (states == SETTLED) | (states == ASTRAY)
        parts = np.where(splits, sizes, 1).prod(axis=1)
        terms = np.where(states == PENDING, sizes, 1).prod(axis=1)

        def are(holds: Mask) -> Mask:
            """Whether all axes that change are so, and some do."""
            mask: Mask = (holds | ~changes).all(axis=2) & changes.any(axis=2)
            return mask

        free, due = are(before == FREE), are(before == PENDING)
        split = are(splits[:, None] & np.ones_like(changes))
        to_split, to_free = are(splits[None] & np.ones_like(changes)), are(after == FREE)
        alone = changes.sum(axis=2) == 1
        collectives = np.select(
            [free & alone, split & to_split, split & to_free, due & to_free, due & to_split],
            [LOCAL, ALL_TO_ALL, ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER],
            default=NONE,
        )
        alike = (parts[:, None] == parts) & (terms[:, None] == terms) & changes.any(axis=2)
        whole = are((before != PENDING) & (after != PENDING))
        exchanges = np.select([alike, whole], [PERMUTE, REDISTRIBUTE], default=NONE)
        moved = changes @ (1 << np.arange(count))
        return self._classes(collectives, moved, parts), self._classes(exchanges, moved, parts)

    def _classes(self, kinds: Whole, moved: Whole, parts: Whole) -> _Moves:
        """Returns the different moves, and which of them leads from each state to each other."""
        sizes, index = np.unique(parts, return_inverse=True)
        code = (kinds * (1 << len(self.axes)) + moved) * len(sizes) + index[:, None]
        code = code * len(sizes) + index
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        moves = [
            _Move(
                KINDS[kinds[row, column]],
                tuple(a for bit, a in enumerate(self.axes) if moved[row, column] >> bit & 1),
                int(parts[row]),
                int(parts[column]),
            )
            for row, column in (divmod(place, len(parts)) for place in first.tolist())
        ]
        return moves, which.reshape(code.shape)
