"""Least: what reshards between many layouts of a tensor take at least, all pairs at once.

A proof asks for millions of pairs. For each it gets the bound with which a search for a path starts
(`PathSearch`): the larger one of what must cross the borders between devices and of what the axes
have to do. Both follow from how pairs of dimensions compare, of which there are few, and from what
each layout is by itself; so they are looked up, and combined as arrays.

One by one, the same bounds make the search of GPT-2 on 4x4x4x4 take 25 CPU seconds instead of 15
(`benchmarks/without.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopar.cost.reshard.bound import Bound
from autopar.cost.reshard.moves import Axes, LayoutGraph
from autopar.cost.reshard.path import ROUNDING
from autopar.cost.reshard.relaxed import Relaxed
from autopar.cost.reshard.slots import Numbers, Slot
from autopar.ir.expr.expression import planned, prod
from autopar.ir.layout import Layout, Partial

Table = NDArray[np.float64]
Whole = NDArray[np.int64]


class LeastSeconds:
    """Bounds of reshards on one mesh; what was derived for pairs of dimensions is remembered.

    Args:
        graph: The layouts and the moves between them.
    """

    def __init__(self, graph: LayoutGraph) -> None:
        self.graph = graph
        self._digits: dict[int, dict[Slot, str]] = {}
        self._astray: dict[tuple[int, int, bool], int] = {}

    def between(self, sources: Sequence[Layout], targets: Sequence[Layout], itemsize: int) -> Table:
        """Returns seconds that a reshard takes at least, from each layout to each other.

        Args:
            sources: Where reshards begin; all normalized, and of one tensor that has elements.
            targets: Where they lead.
            itemsize: Bytes per element.
        """
        return _Pairs(self, sources, targets, itemsize).least_seconds()

    def astray(self, relaxed: Relaxed, is_even: bool, one: int, other: int) -> int:
        """Returns what axes add to a state that split a dimension otherwise than a goal does.

        Where layouts don't divide evenly, that are those that split another dimension in the goal.
        """
        found = self._astray.get((one, other, is_even))
        if found is None:
            if is_even:
                settled = self._digits_of(other)
                axes = [axis for slot, axis in self._digits_of(one).items() if slot not in settled]
            else:
                wanted = self.graph.table.axes_of(other)
                axes = [axis for axis in self.graph.table.axes_of(one) if axis not in wanted]
            found = self._astray[one, other, is_even] = relaxed.number((), (), axes)
        return found

    def _digits_of(self, number: int) -> dict[Slot, str]:
        """Returns the digits that a dimension fills, with their axes."""
        found = self._digits.get(number)
        if found is None:
            slots = self.graph.table.filled((number,))
            found = {slot: slot.axes[0] for slot in slots if slot.is_digit}
            self._digits[number] = found
        return found


class _Classes:
    """What occurs in a sequence, and where.

    Attributes:
        found: What occurs, each once.
        index: Per element, its position among these.
    """

    def __init__(self, elements: Iterable[Hashable]) -> None:
        order: dict[Hashable, int] = {}
        index = [order.setdefault(each, len(order)) for each in elements]
        self.found: list[Any] = list(order)
        self.index = np.array(index, dtype=np.intp)


class _Pairs:
    def __init__(
        self,
        known: LeastSeconds,
        sources: Sequence[Layout],
        targets: Sequence[Layout],
        itemsize: int,
    ) -> None:
        self.known, self.graph, self.itemsize = known, known.graph, itemsize
        self.table = self.graph.table
        self.targets = targets
        sides = [[self.table.numbered(each.dims) for each in side] for side in (sources, targets)]
        self.before, self.after = sides
        numbers = [map(_Classes, zip(*side, strict=True)) for side in sides]
        self.dims = list(zip(*numbers, strict=True))
        """Per dimension, its numbers in the sources and in the targets."""
        self.pending = _Classes(layout.partial for layout in sources)
        self.pending_after = _Classes(layout.partial for layout in targets)

    def least_seconds(self) -> Table:
        """Returns the bounds; 0 between layouts that are the same."""
        least = self._crossing()
        if self.graph.relaxed is not None:
            least = np.maximum(least, self._relaxed(self.graph.relaxed))
        same = self._of_pending(lambda one, other: one == other).astype(bool)
        for dims in self._of_dims(lambda one, other: one == other):
            same &= dims.astype(bool)
        return np.where(same, 0.0, least * (1 - ROUNDING))

    def _crossing(self) -> Table:
        """Returns seconds for what must cross borders; 0 where local moves alone may do."""
        dues: dict[Axes, int] = {(): 0}

        def due(source: Partial, target: Partial) -> int:
            axes = tuple(pair[0] for pair in source if pair not in target)
            return dues.setdefault(axes, len(dues))

        owed = self._of_pending(due)
        local = owed == 0
        for dims in self._of_dims(lambda one, other: self.table.may_become((one,), (other,))):
            local &= dims.astype(bool)
        whole = np.array([not layout.partial for layout in self.targets])
        owed = np.where(whole, owed, 0)
        goals = _Classes(map(self._goal, range(len(self.targets))))
        shared = [self._shared(border) for border in range(len(self.table.borders))]
        # Few pairs differ in all that counts.
        code = owed * len(goals.found) + goals.index
        for each in shared:
            sizes, index = np.unique(each, return_inverse=True)
            code = code * len(sizes) + index.reshape(code.shape)
        _, first, index = np.unique(code, return_index=True, return_inverse=True)
        axes, bounds = list(dues), self._bounds(goals)
        seconds = [
            bounds[goals.index[column]].of_shared(
                [int(each[row, column]) for each in shared], axes[owed[row, column]]
            )
            for row, column in zip(*np.unravel_index(first, code.shape), strict=True)
        ]
        return np.where(local, 0.0, np.array(seconds)[index].reshape(code.shape))

    def _goal(self, index: int) -> tuple[int, frozenset[str]]:
        """Returns all of a target that its bound depends on, but for what it shares."""
        return self.table.elements(self.after[index]), frozenset(self.targets[index].sharded_axes)

    def _bounds(self, goals: _Classes) -> list[Bound]:
        firsts = dict(zip(reversed(goals.index), reversed(self.targets), strict=True))
        return [
            Bound(self.graph, firsts[number], self.itemsize) for number in range(len(goals.found))
        ]

    def _shared(self, border: int) -> Whole:
        """Returns at most how many elements of a target's piece a group of devices has."""
        shared = np.ones((len(self.before), len(self.after)), dtype=np.int64)
        for dims in self._of_dims(lambda one, other: self.table.shared((one,), (other,), border)):
            shared *= dims
        return shared

    def _relaxed(self, relaxed: Relaxed) -> Table:
        """Returns seconds for what axes have to do."""
        even = [
            np.array([self.table.is_even(dims) for dims in side])
            for side in (self.before, self.after)
        ]
        is_even = even[0][:, None] & even[1][None, :]
        starts = self._numbers(relaxed, self.before, self.pending)
        ends = _Classes(self._numbers(relaxed, self.after, self.pending_after))
        astray = {each: np.zeros(is_even.shape, dtype=np.int64) for each in (False, True)}
        for each, total in astray.items():
            for dims in self._of_dims(partial(self.known.astray, relaxed, each)):
                total += dims
        numbers = np.array(starts)[:, None] + np.where(is_even, astray[True], astray[False])
        nbytes = planned(prod(self.targets[0].shape)) * self.itemsize
        by_evenness = [
            np.array([relaxed.seconds_to(end, nbytes, is_even=each) for end in ends.found])
            for each in (False, True)
        ]
        uneven, evenly = (seconds[ends.index[None, :], numbers] for seconds in by_evenness)
        seconds: Table = np.where(is_even, evenly, uneven)
        return seconds

    def _numbers(self, relaxed: Relaxed, side: Sequence[Numbers], pending: _Classes) -> list[int]:
        """Returns the states of layouts in which all that is split is split as it should be."""
        partials: list[Partial] = [pending.found[index] for index in pending.index]
        return [
            relaxed.number(
                chain.from_iterable(map(self.table.axes_of, dims)),
                [axis for axis, _ in partial],
                (),
            )
            for dims, partial in zip(side, partials, strict=True)
        ]

    def _of_dims(self, of: Callable[[int, int], int]) -> Iterator[Whole]:
        """Yields per dimension what a function says of its numbers in each source and target."""
        return (_of_classes(of, *pair) for pair in self.dims)

    def _of_pending(self, of: Callable[[Partial, Partial], int]) -> Whole:
        """Returns what a function says of what is pending in each source and target."""
        return _of_classes(of, self.pending, self.pending_after)


def _of_classes(of: Callable[[Any, Any], int], one: _Classes, other: _Classes) -> Whole:
    table = np.array([[int(of(a, b)) for b in other.found] for a in one.found])
    return table[np.ix_(one.index, other.index)]
