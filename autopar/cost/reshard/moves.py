"""Moves: how a layout can change in one step, and what each change costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from autopar.cost.collectives import CommunicationModel
from autopar.cost.reshard.permutation import alternatives, permutation
from autopar.cost.reshard.places import Place
from autopar.cost.reshard.redistribution import redistribution_messages
from autopar.cost.reshard.relaxed import MOST_AXES, Relaxed
from autopar.cost.reshard.slots import Numbers, Slot, SlotTable
from autopar.ir.expr.expression import planned
from autopar.ir.layout import Partial
from autopar.ir.mesh import ProcessMesh

Axes = tuple[str, ...]
State = tuple[Numbers, Partial]
"""A layout, its dimensions as a `SlotTable` numbers them."""


@dataclass(frozen=True, slots=True)
class Step:
    """A move as an edge: the state that it leads to. The rest is described at `Move`."""

    kind: str
    axes: Axes
    state: State
    seconds: float = 0.0
    bytes: int = 0
    source: Place | None = None
    target: Place | None = None
    monoid: str = ""


class LayoutGraph:
    """The layouts of tensors on a mesh as a graph: what moves lead on from each.

    Args:
        model: Predicts seconds.
        mesh: The processes.
        axes: Those of its axes over which processes may communicate.
    """

    def __init__(self, model: CommunicationModel, mesh: ProcessMesh, axes: Axes) -> None:
        self.model = model
        self.axes = tuple(axis for axis in axes if mesh.axis_size(axis) > 1)
        self.table = SlotTable(mesh, self.axes, model.borders(self.axes))
        self.relaxed = Relaxed(model, self.axes) if len(self.axes) <= MOST_AXES else None
        self._moves: dict[tuple[State, int], tuple[Step, ...]] = {}
        self._permuted: dict[tuple[Axes, ...], list[tuple[tuple[Axes, ...], Axes]]] = {}

    def moves(self, state: State, itemsize: int) -> tuple[Step, ...]:
        """Returns every move from a layout; remembered."""
        key = (state, itemsize)
        moves = self._moves.get(key)
        if moves is None:
            moves = self._moves[key] = tuple(self._all_moves(state, itemsize))
        return moves

    def nbytes(self, dims: Numbers, itemsize: int) -> int:
        """Returns the bytes of the largest piece."""
        return self.table.elements(dims) * itemsize

    def slice(self, state: State, slot: Slot) -> Iterator[Step]:
        """Yields the slice that fills a slot, if it fits."""
        after = self.table.fill(state[0], slot)
        if after is not None:
            yield Step("slice", slot.axes, (after, state[1]), target=slot.place)

    def to_partial(self, state: State, axis: str, monoid: str, itemsize: int) -> Step:
        """Returns the move that makes a layout pending over an axis: a copy, or zeros."""
        dims, partial = state
        now = {**dict(partial), axis: monoid}
        order = tuple((name, now[name]) for name in self.axes if name in now)
        seconds = self._copied(self.nbytes(dims, itemsize))
        return Step("to_partial", (axis,), (dims, order), seconds, monoid=monoid)

    def gather(self, state: State, slot: Slot, itemsize: int) -> Iterator[Step]:
        """Yields the all_gather of a slot's blocks, padded to the largest, if they nest."""
        after = self.table.clear(state[0], slot)
        if after is not None:
            nbytes = self.nbytes(after, itemsize)
            padded = self.nbytes(state[0], itemsize) * self.table.count(slot.axes)
            seconds = self._stored(nbytes, self.model.all_gather(padded, slot.axes))
            end = (after, state[1])
            yield Step("all_gather", slot.axes, end, seconds, nbytes, source=slot.place)

    def all_to_all(self, state: State, slot: Slot, other: Slot, itemsize: int) -> Iterator[Step]:
        """Yields the all_to_all that moves axes from one slot to another, if they fit."""
        both = self.table.fill(state[0], other)
        after = self.table.clear(both, slot) if both is not None else None
        if after is not None:
            nbytes = self.nbytes(after, itemsize)
            largest = max(self.nbytes(state[0], itemsize), nbytes)
            seconds = self._stored(nbytes, self.model.all_to_all(largest, slot.axes))
            end, places = (after, state[1]), (slot.place, other.place)
            yield Step("all_to_all", slot.axes, end, seconds, nbytes, *places)

    def reduce(self, state: State, axes: Axes, itemsize: int) -> Step:
        """Returns the all_reduce over some of the pending axes."""
        dims, partial = state
        end = (dims, _without(partial, axes))
        nbytes = self.nbytes(dims, itemsize)
        seconds = self._stored(nbytes, self.model.all_reduce(nbytes, axes))
        return Step("all_reduce", axes, end, seconds, nbytes, monoid=partial[0][1])

    def reduce_scatter(self, state: State, slot: Slot, itemsize: int) -> Iterator[Step]:
        """Yields the reduce_scatter of pending axes into a slot, if they fit."""
        dims, partial = state
        after = self.table.fill(dims, slot)
        if after is not None:
            end = (after, _without(partial, slot.axes))
            nbytes = self.nbytes(after, itemsize)
            padded = nbytes * self.table.count(slot.axes)
            seconds = self._stored(nbytes, self.model.reduce_scatter(padded, slot.axes))
            place, monoid = slot.place, partial[0][1]
            yield Step("reduce_scatter", slot.axes, end, seconds, nbytes, None, place, monoid)

    def redistribute(
        self, state: State, position: int, number: int, itemsize: int
    ) -> Iterator[Step]:
        """Yields the move that cuts a dimension anew, if both cuts leave one stretch each."""
        dims, partial = state
        old, new = (self.table.cut_of(dim) for dim in (dims[position], number))
        if old is None or new is None or dims[position] == number:
            return
        axes = (*old.axes, *(axis for axis in new.axes if axis not in old.axes))
        members, *parts = (self.table.count(which) for which in (axes, old.axes, new.axes))
        shares = (members // count for count in parts)
        size, held, wanted = (max(1, planned(each)) for each in (new.size, old.block, new.block))
        moved = redistribution_messages(size, held, wanted, *shares)
        after = (*dims[:position], number, *dims[position + 1 :])
        nbytes = self.nbytes(after, itemsize)
        row = nbytes // wanted
        seconds = self.model.point_to_point(moved.elements * row, axes, moved.messages)
        seconds = self._stored(nbytes, seconds)
        place = Place(position, 1, new.size, 1)
        yield Step("redistribute", axes, (after, partial), seconds, nbytes, target=place)

    def _all_moves(self, state: State, itemsize: int) -> Iterator[Step]:
        dims, partial = state
        filled = self.table.filled(dims)
        busy = {axis for slot in filled for axis in slot.axes}
        pending = tuple(axis for axis, _ in partial)
        free = tuple(axis for axis in self.axes if axis not in busy and axis not in pending)
        yield from self._slices(state, free)
        if partial:
            for axis in free:
                yield self.to_partial(state, axis, partial[0][1], itemsize)
        for slot in filled:
            yield from self.gather(state, slot, itemsize)
            for other in self.table.vacant(dims, slot.axes):
                yield from self.all_to_all(state, slot, other, itemsize)
        for axes in _ordered(pending):
            if axes == tuple(axis for axis in pending if axis in axes):
                yield self.reduce(state, axes, itemsize)
            for slot in self.table.vacant(dims, axes):
                yield from self.reduce_scatter(state, slot, itemsize)
        yield from self._permutes(state, itemsize)
        yield from self._redistributions(state, free, itemsize)

    def _slices(self, state: State, free: Axes) -> Iterator[Step]:
        """Slices over one axis, and over several where the blocks of some alone don't nest."""
        for axes in _ordered(free):
            for slot in self.table.vacant(state[0], axes):
                if len(axes) == 1 or slot.region:
                    yield from self.slice(state, slot)

    def _permutes(self, state: State, itemsize: int) -> Iterator[Step]:
        dims, partial = state
        nbytes = self.nbytes(dims, itemsize)
        mesh = self.table.mesh
        padding = self.table.uneven(dims) * self._copied(nbytes)
        runs = (*self.table.runs(dims), tuple(axis for axis, _ in partial))
        if runs not in self._permuted:
            self._permuted[runs] = [
                (other, permutation(runs, other, mesh).axes)
                for other in alternatives(runs, self.axes, mesh)
            ]
        for other, axes in self._permuted[runs]:
            left = tuple((axis, partial[0][1]) for axis in other[-1])
            seconds = self._stored(nbytes, self.model.point_to_point(nbytes, axes)) + padding
            end = (self.table.relabeled(dims, other), left)
            yield Step("permute", axes, end, seconds, nbytes)

    def _redistributions(self, state: State, free: Axes, itemsize: int) -> Iterator[Step]:
        for position, number in enumerate(state[0]):
            cut = self.table.cut_of(number)
            if cut is not None:
                for axes in _ordered((*cut.axes, *free)):
                    yield from self.redistribute(
                        state, position, self.table.recut(number, axes), itemsize
                    )

    def _stored(self, nbytes: int, seconds: float) -> float:
        """Adds the time to store a result, so that one move wins over two that send as much.

        Slices count nothing: what they cost would decide between equal collectives.
        """
        return seconds + self.model.local_copy(nbytes)

    def _copied(self, nbytes: int) -> float:
        """Returns the seconds of an op that copies this many bytes."""
        return self.model.cluster.launch_seconds + self.model.local_copy(nbytes)


def _without(partial: Partial, axes: Axes) -> Partial:
    return tuple(pair for pair in partial if pair[0] not in axes)


def _ordered(axes: Axes) -> Iterator[Axes]:
    """Yields all selections of axes in all orders."""
    for count in range(1, len(axes) + 1):
        yield from permutations(axes, count)
