"""Bulk: the seconds between all layouts of a tensor at once.

`ReshardPlanner` finds the fastest reshard between two layouts, among all there are. A search over
plans asks for thousands of pairs, most of which it never uses. Here every move from one of the
given layouts to another is priced in closed form, for all pairs together as arrays, and the
shortest paths follow from these. Moves by way of a layout that isn't among them are left out, so a
path may be slower than the planner's, rarely.

Models made of bounds instead find a plan of GPT-2 on 4x4x4x4 that is 4.7% slower
(`benchmarks/without.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autopar.cost.collectives import CommunicationModel
from autopar.ir.dims import block_size
from autopar.ir.expr.expression import planned
from autopar.ir.layout import Layout

Table = NDArray[np.float64]
Mask = NDArray[np.bool_]
Digit = tuple[int, int, int]
"""Where an axis splits: dimension, elements major to it, elements with those minor to it."""

FREE, PENDING = -1, -2

FEW_AXES = 4
"""Up to so many axes any of them may move together."""


class BulkPlanner:
    """Prices reshards between many layouts on one mesh.

    Args:
        model: Predicts seconds.
    """

    def __init__(self, model: CommunicationModel) -> None:
        self.model = model
        mesh = model.mesh
        self.axes = tuple(axis for axis in mesh.dim_names if mesh.axis_size(axis) > 1)
        self._digits: dict[Layout, tuple[dict[str, Digit], int]] = {}
        self._collectives: dict[tuple[str, float, tuple[str, ...]], float] = {}

    def reshard_seconds(self, layouts: Sequence[Layout], itemsize: int) -> Table:
        """Returns the seconds from each layout to each other.

        Args:
            layouts: Of one tensor, all different.
            itemsize: Bytes per element.
        """
        moves = _Moves(self, layouts, itemsize)
        seconds = moves.fastest()
        total = np.empty_like(seconds)
        for middle in range(len(layouts)):
            np.add(seconds[:, middle : middle + 1], seconds[middle], out=total)
            np.minimum(seconds, total, out=seconds)
        if np.isinf(seconds).any():
            seconds = np.where(np.isinf(seconds), moves.by_way_of_less(), seconds)
        return seconds

    def collective(self, kind: str, nbytes: float, axes: tuple[str, ...]) -> float:
        """Returns the seconds of a collective.

        Args:
            kind: A method of the model.
            nbytes: What it takes.
            axes: Of the group.
        """
        key = kind, nbytes, axes
        found = self._collectives.get(key)
        if found is None:
            price: Callable[[float, Sequence[str]], float] = getattr(self.model, kind)
            found = self._collectives[key] = price(nbytes, axes)
        return found

    def digits(self, layout: Layout) -> tuple[dict[str, Digit], int]:
        """Returns where each axis splits, and the elements of the largest piece."""
        found = self._digits.get(layout)
        if found is None:
            found = self._digits[layout] = self._derive(layout)
        return found

    def _derive(self, layout: Layout) -> tuple[dict[str, Digit], int]:
        places: dict[str, Digit] = {}
        elements = 1
        for number, dim in enumerate(layout.dims):
            outer = 1
            for sub in dim:
                size = rest = planned(sub.size)
                for axis in sub.axes:
                    places[axis] = (number, outer, rest)
                    count = layout.mesh.axis_size(axis)
                    outer, rest = outer * count, block_size(rest, count)
                elements *= block_size(size, layout.mesh.axes_size(sub.axes))
                outer *= rest
        return places, elements


class _Moves:
    """All moves between layouts of one tensor."""

    def __init__(self, planner: BulkPlanner, layouts: Sequence[Layout], itemsize: int) -> None:
        self.planner, self.model = planner, planner.model
        self.axes = planner.axes
        self.places = [planner.digits(layout) for layout in layouts]
        self.bytes = np.array([elements * itemsize for _, elements in self.places], dtype=float)
        self.sizes = np.unique(self.bytes, return_inverse=True)
        self.copies = np.array([self.model.local_copy(nbytes) for nbytes in self.bytes.tolist()])
        """Seconds to store what a move leaves, by layout."""
        self.codes = self._codes(layouts)
        digits = [[places.get(axis, (-1, 0, 0)) for axis in self.axes] for places, _ in self.places]
        self.dims = np.array([[digit[0] for digit in row] for row in digits])
        self.outer = np.array([[digit[1] for digit in row] for row in digits])
        self.same = [
            self.codes[:, None, a] == self.codes[None, :, a] for a in range(len(self.axes))
        ]
        bits = (1 << axis for axis in range(len(self.axes)))
        self.changed = sum(
            (~same * bit for same, bit in zip(self.same, bits, strict=True)),
            start=np.zeros((len(layouts),) * 2, dtype=np.int64),
        )
        """Per pair the axes that do something else, as bits."""
        self.seconds = np.full((len(layouts),) * 2, math.inf)
        np.fill_diagonal(self.seconds, 0.0)

    def _codes(self, layouts: Sequence[Layout]) -> NDArray[np.int64]:
        """Returns per layout and axis a number for where the axis splits."""
        numbers: dict[Digit, int] = {}
        codes = np.full((len(layouts), len(self.axes)), FREE)
        for row, (layout, (places, _)) in enumerate(zip(layouts, self.places, strict=True)):
            pending = set(layout.partial_axes)
            for number, axis in enumerate(self.axes):
                if axis in places:
                    codes[row, number] = numbers.setdefault(places[axis], len(numbers))
                elif axis in pending:
                    codes[row, number] = PENDING
        return codes

    def fastest(self) -> Table:
        """Returns the seconds of the fastest single move for every pair."""
        for group in self._groups():
            self._move(group)
        for pair in combinations(range(len(self.axes)), 2):
            self._permute(pair)
        return self.seconds

    def _groups(self) -> Iterator[tuple[int, ...]]:
        """Yields the axes that may move together; of many, only those next to one another."""
        count = len(self.axes)
        if count > FEW_AXES:
            yield from (tuple(range(*ends)) for ends in combinations(range(count + 1), 2))
            return
        for size in range(1, count + 1):
            yield from combinations(range(count), size)

    def _move(self, group: tuple[int, ...]) -> None:
        """Adds the moves of axes that change together, the others staying where they are."""
        rest = self._rest(group)
        names = tuple(self.axes[a] for a in group)
        codes = self.codes[:, group]
        free, due = (codes == FREE).all(axis=1), (codes == PENDING).all(axis=1)
        run, every = self._runs(group), np.ones_like(free)
        parts = float(self.model.mesh.axes_size(names))
        self._offer(rest, free, every, np.zeros_like(self.bytes))
        if run.any():
            # Blocks are padded to the largest.
            gather = self._priced("all_gather", names, parts)
            self._offer(rest, run, free, gather[:, None] + self.copies)
            send = self._priced("all_to_all", names)
            larger = np.maximum(send[:, None], send)
            self._offer(rest & ~self.same[group[0]], run, run, larger + self.copies)
        if due.any():
            reduce = self._priced("all_reduce", names)
            self._offer(rest, due, free, reduce + self.copies)
            scatter = self._priced("reduce_scatter", names, parts)
            self._offer(rest, due, run, scatter + self.copies)

    def _rest(self, group: tuple[int, ...]) -> Mask:
        """Returns which pairs have all other axes alike."""
        of_group = sum(1 << axis for axis in group)
        rest: Mask = (self.changed & ~of_group) == 0
        return rest

    def _runs(self, group: tuple[int, ...]) -> Mask:
        """Returns which layouts split one stretch over these axes, next to one another."""
        dims, outer = self.dims[:, group], self.outer[:, group]
        order = np.argsort(outer, axis=1)
        outer = np.take_along_axis(outer, order, axis=1)
        counts = np.array([self.model.mesh.axis_size(self.axes[a]) for a in group])[order]
        beside = (outer[:, :-1] * counts[:, :-1] == outer[:, 1:]).all(axis=1)
        runs: Mask = (dims[:, 0] >= 0) & (dims == dims[:, :1]).all(axis=1) & beside
        return runs

    def by_way_of_less(self) -> Table:
        """Returns seconds to gather or reduce all that changes at once, and to slice what is left.

        For pairs between which the layouts at hand leave no path.
        """
        changed = ~np.stack(self.same, axis=2)
        bits = 1 << np.arange(len(self.axes))
        split = (changed & (self.codes >= 0)[:, None, :]) @ bits
        due = (changed & (self.codes == PENDING)[:, None, :]) @ bits
        seconds = np.zeros(split.shape)
        for pair in np.unique(np.stack([split.ravel(), due.ravel()], axis=1), axis=0):
            gathered, reduced = (self._names(int(mask)) for mask in pair)
            parts = float(self.model.mesh.axes_size(gathered))
            stored = np.array([self.model.local_copy(n) for n in (self.bytes * parts).tolist()])
            rows = np.zeros_like(self.bytes)
            if gathered:
                rows += self._priced("all_gather", gathered, parts) + stored
            if reduced:
                rows += self._priced("all_reduce", reduced, parts) + stored
            here = (split == pair[0]) & (due == pair[1])
            seconds = np.where(here, rows[:, None], seconds)
        return seconds

    def _names(self, mask: int) -> tuple[str, ...]:
        return tuple(axis for index, axis in enumerate(self.axes) if mask >> index & 1)

    def _permute(self, pair: tuple[int, int]) -> None:
        """Adds moves in which two axes of the same size change places."""
        one, other = pair
        names = (self.axes[one], self.axes[other])
        if len({self.model.mesh.axis_size(name) for name in names}) > 1:
            return
        codes = self.codes
        swapped = (codes[:, None, one] == codes[None, :, other]) & (
            codes[:, None, other] == codes[None, :, one]
        )
        pairs = self._rest(pair) & swapped & ~self.same[one]
        if pairs.any():
            seconds = self._priced("point_to_point", names)
            self._offer(pairs, pairs.any(axis=1), pairs.any(axis=0), seconds + self.copies)

    def _priced(self, kind: str, axes: tuple[str, ...], parts: float = 1.0) -> Table:
        """Returns per layout the seconds of a collective that takes so many times its pieces."""
        sizes, which = self.sizes
        every = [self.planner.collective(kind, n, axes) for n in (sizes * parts).tolist()]
        return np.array(every)[which]

    def _offer(self, pairs: Mask, sources: Mask, targets: Mask, seconds: Table) -> None:
        """Takes a move that leads to a layout, for these pairs, where it is the fastest.

        Args:
            pairs: Between which it leads.
            sources: Only from these.
            targets: Only to these.
            seconds: By target, or of each pair.
        """
        rows, columns = np.flatnonzero(sources), np.flatnonzero(targets)
        if len(rows) and len(columns):
            block = np.ix_(rows, columns)
            offered = np.where(pairs[block], np.broadcast_to(seconds, pairs.shape)[block], math.inf)
            self.seconds[block] = np.minimum(self.seconds[block], offered)
