"""Relaxed: seconds that a reshard takes at least, if only what axes do counts, and not where.

An axis splits what it should, splits something else, has a sum pending, or is free. Between such
states lead the moves that there are, with all the room they could wish for: whatever is split is
next to one another, and pieces divide evenly. So there are few states, and the distances from all
of them are known at once. A real path takes no less, and most often just as much: it only has to be
found.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
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

SPLIT = {SETTLED, ASTRAY}
"""What an axis does that splits."""

PERMUTE, REBLOCK = "permute", "reblock"

MOST_AXES = 4
"""With more axes there are too many states."""


Indexes = NDArray[np.intp]


class _Move(NamedTuple):
    """A move between states; parts are those into which the tensor is split."""

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
        self._unit: dict[str, int] = {axis: 4**at for at, axis in enumerate(reversed(axes))}
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
        count = 4 ** len(self.axes)
        prices = np.full((count, count), math.inf)
        for move, (before, after) in self._moves.items():
            seconds = self._price(move, nbytes, is_even)
            prices[before, after] = np.minimum(prices[before, after], seconds)
        return prices

    def _price(self, move: _Move, nbytes: int, is_even: bool) -> float:
        """Returns the seconds of a move: of the collective, and of storing its result."""
        model, kind = self.model, move.kind
        has, left = nbytes / move.parts_before, nbytes / move.parts_after
        match kind:
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
                grows = is_even and kind == REBLOCK
                messages = math.ceil(move.parts_before / move.parts_after) if grows else 1
                seconds = model.point_to_point(left, move.axes, messages)
        return seconds + model.local_copy(left)

    @cached_property
    def _moves(self) -> dict[_Move, tuple[Indexes, Indexes]]:
        """The moves, each with the states that it leads from, and to."""
        states = list(product(range(4), repeat=len(self.axes)))
        pairs: dict[_Move, list[tuple[int, int]]] = {}
        for before, after in product(states, states):
            for kind in self._kinds(before, after) if before != after else ():
                move = _Move(
                    kind,
                    tuple(
                        axis for axis, a, b in zip(self.axes, before, after, strict=True) if a != b
                    ),
                    self._count(before, SPLIT),
                    self._count(after, SPLIT),
                )
                pairs.setdefault(move, []).append((self._number(before), self._number(after)))
        return {
            move: (np.array([one for one, _ in found]), np.array([other for _, other in found]))
            for move, found in pairs.items()
        }

    def _kinds(self, before: State, after: State) -> Iterator[str]:
        """Yields the moves that lead from a state to another."""
        changes = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
        old, new = ({change[at] for change in changes} for at in (0, 1))
        if old == {FREE} and len(changes) == 1:
            yield "local"
        elif old <= SPLIT and new <= SPLIT:
            yield "all_to_all"
        elif old <= SPLIT and new == {FREE}:
            yield "all_gather"
        elif old == {PENDING} and new == {FREE}:
            yield "all_reduce"
        elif old == {PENDING} and new <= SPLIT:
            yield "reduce_scatter"
        if all(
            self._count(before, does) == self._count(after, does) for does in (SPLIT, {PENDING})
        ):
            yield PERMUTE
        elif PENDING not in old | new:
            yield REBLOCK

    def _number(self, state: State) -> int:
        kinds = (SPLIT, {PENDING}, {ASTRAY})
        return self.number(*(self._which(state, what) for what in kinds))

    def _count(self, state: State, what: Collection[int]) -> int:
        return self.model.mesh.axes_size(self._which(state, what))

    def _which(self, state: State, what: Collection[int]) -> Axes:
        return tuple(axis for axis, does in zip(self.axes, state, strict=True) if does in what)
