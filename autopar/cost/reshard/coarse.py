"""Coarse: neighbouring axes of a mesh that do the same are planned as one.

The number of layouts and moves grows exponentially with the axes, and faster. But of many axes most
do in a reshard what their neighbours do: they split the same dimension next to one another before
and after, or wait for the same sum. So two axes of 4 count as one of 16, and 4 x 4 x 4 x 4 is no
harder than 16 x 16. Idle axes are joined only where they lie on the same links, since a share of a
collective's work goes to those on fast ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autopar.cost.collectives import CommunicationModel
from autopar.cost.reshard.least import LeastSeconds
from autopar.cost.reshard.moves import Axes, LayoutGraph, State
from autopar.cost.reshard.relaxed import MOST_AXES
from autopar.ir.dims import SubDim
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh

Groups = dict[str, Axes]
"""Axes that count as one, by the first of them."""


class Coarse:
    """A mesh on which groups of axes are one each, and its layouts as a graph.

    Args:
        model: Predicts seconds on the mesh itself.
        mesh: The mesh.
        groups: The groups, in the order of the mesh. No layout splits other axes.
    """

    def __init__(self, model: CommunicationModel, mesh: ProcessMesh, groups: Groups) -> None:
        self._fine, self._groups = mesh, groups
        self.mesh = ProcessMesh.of_shape([*map(mesh.axes_size, groups.values())], tuple(groups))
        self.graph = LayoutGraph(model.grouped(self.mesh, groups), self.mesh, tuple(groups))
        self.least = LeastSeconds(self.graph)
        self._layouts: dict[Layout, Layout] = {}
        self._states: dict[Layout, State] = {}

    def layout(self, fine: Layout) -> Layout:
        """Returns a layout on this mesh; the axes of each group must do the same in it."""
        found = self._layouts.get(fine)
        if found is None:
            known = self._groups
            dims = tuple(
                tuple(SubDim(sub.size, tuple(a for a in sub.axes if a in known)) for sub in dim)
                for dim in fine.dims
            )
            partial = tuple(pair for pair in fine.partial if pair[0] in known)
            found = replace(fine, mesh=self.mesh, dims=dims, partial=partial)
            self._layouts[fine] = found
        return found

    def state(self, fine: Layout) -> State:
        """Returns the number that a layout has in the graph; remembered."""
        found = self._states.get(fine)
        if found is None:
            coarse = self.layout(fine)
            found = self._states[fine] = self.graph.table.numbered(coarse.dims), coarse.partial
        return found

    def fine_axes(self, axes: Axes) -> Axes:
        """Returns what axes of this mesh are on the mesh itself."""
        return tuple(axis for group in axes for axis in self._groups[group])

    def fine_layout(self, state: State) -> Layout:
        """Returns what a layout on this mesh is on the mesh itself."""
        dims = tuple(
            tuple(SubDim(sub.size, self.fine_axes(sub.axes)) for sub in dim)
            for dim in self.graph.table.dims(state[0])
        )
        partial = tuple(
            (axis, monoid) for group, monoid in state[1] for axis in self._groups[group]
        )
        return Layout(self._fine, dims, partial)


class Coarsening:
    """The coarse meshes of one mesh.

    Args:
        model: Predicts seconds.
        mesh: The mesh.
        axes: Those of its axes over which processes may communicate.
    """

    def __init__(self, model: CommunicationModel, mesh: ProcessMesh, axes: Axes) -> None:
        self._model, self._mesh = model, mesh
        self._axes = tuple(axis for axis in axes if mesh.axis_size(axis) > 1)
        self._pairs = [*pairwise(self._axes)] if len(self._axes) > MOST_AXES else []
        levels = {axis: [count > 1 for count in model.span((axis,))] for axis in self._axes}
        self._unlike = _bits(levels[one] != levels[other] for one, other in self._pairs)
        self._known: dict[int, Coarse] = {}
        self._alike: dict[Layout, tuple[int, int]] = {}

    def between(self, source: Layout, target: Layout) -> Coarse:
        """Returns the coarsest mesh for reshards between two layouts."""
        (before, idle), (after, unused) = self._alike_in(source), self._alike_in(target)
        return self._joining(before & after & ~(idle & unused & self._unlike))

    def least_seconds(
        self, sources: Sequence[Layout], targets: Sequence[Layout], itemsize: int
    ) -> NDArray[np.float64]:
        """Returns seconds that a reshard takes at least, from each layout to each other.

        Args:
            sources: Where reshards begin; all normalized, and of one tensor that has elements.
            targets: Where they lead.
            itemsize: Bytes per element.
        """
        before, after = (
            np.array([self._alike_in(each) for each in side], dtype=np.int64).T
            for side in (sources, targets)
        )
        idle = before[1][:, None] & after[1]
        joined = before[0][:, None] & after[0] & ~(idle & self._unlike)
        seconds = np.zeros(joined.shape)
        for each in np.unique(joined):
            coarse, here = self._joining(int(each)), joined == each
            rows, columns = (np.flatnonzero(here.any(axis=axis)).tolist() for axis in (1, 0))
            part = coarse.least.between(
                [coarse.layout(sources[row]) for row in rows],
                [coarse.layout(targets[column]) for column in columns],
                itemsize,
            )
            block = np.ix_(rows, columns)
            seconds[block] = np.where(here[block], part, seconds[block])
        return seconds

    def _joining(self, joined: int) -> Coarse:
        found = self._known.get(joined)
        if found is None:
            found = self._known[joined] = Coarse(self._model, self._mesh, self._groups(joined))
        return found

    def _groups(self, joined: int) -> Groups:
        if not self._axes:
            return {self._mesh.dim_names[0]: self._mesh.dim_names[:1]}
        groups: Groups = {}
        first = ""
        for index, axis in enumerate(self._axes):
            first = first if index and joined >> (index - 1) & 1 else axis
            groups[first] = (*groups.get(first, ()), axis)
        return groups

    def _alike_in(self, layout: Layout) -> tuple[int, int]:
        """Returns which axes do what the next one does, and which of them are idle, as bits."""
        found = self._alike.get(layout)
        if found is None:
            found = self._alike[layout] = self._compared(layout)
        return found

    def _compared(self, layout: Layout) -> tuple[int, int]:
        next_of = {pair for dim in layout.dims for sub in dim for pair in pairwise(sub.axes)}
        busy, pending = set(layout.sharded_axes), dict(layout.partial)
        unsplit = [busy.isdisjoint(pair) for pair in self._pairs]
        together = [pending.get(one) == pending.get(other) for one, other in self._pairs]
        idle = _bits(
            free and pair[0] not in pending and pair[1] not in pending
            for pair, free in zip(self._pairs, unsplit, strict=True)
        )
        alike = _bits(
            pair in next_of or (free and same)
            for pair, free, same in zip(self._pairs, unsplit, together, strict=True)
        )
        return alike, idle


def _bits(flags: Iterable[bool]) -> int:
    return sum(flag << place for place, flag in enumerate(flags))
