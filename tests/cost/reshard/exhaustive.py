"""The fastest reshards by brute force: all layouts, all moves, Dijkstra's algorithm.

Shares with the planner what a layout is and what a collective costs, and nothing else. A dimension
can be written as a product of sub-dimensions in many ways; a move changes the axes of one or two
sub-dimensions in any of them. Every layout that can be reached so is a node, and the paths from a
source to all others are found at once, without any idea where they should lead.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from autopar.cost import CommunicationModel
from autopar.cost.reshard.redistribution import redistribution_messages
from autopar.ir.dims import DimLayout, SubDim, dim_axes, local_extent, normalize_dim
from autopar.ir.expr.expression import evaluate
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh

Axes = tuple[str, ...]
Pending = tuple[tuple[str, str], ...]
Node = tuple[tuple[DimLayout, ...], Pending]
Edge = tuple[str, Axes, Node, Node]
"""Kind of move, axes of the group, layout before, layout after."""


class Exhaustive:
    """All layouts of tensors of one shape on one mesh, and the moves between them.

    Args:
        mesh: The processes.
        shape: The tensor's shape.
        monoids: Reductions that may be pending, one at a time.
    """

    def __init__(self, mesh: ProcessMesh, shape: Sequence[int], monoids: Sequence[str]) -> None:
        self.mesh = mesh
        self.shape = tuple(shape)
        self.monoids = tuple(monoids)
        self.dims = [_DimMoves(mesh, size) for size in shape]
        self._edges: dict[Node, list[Edge]] = {}
        self._reached: dict[tuple[Node, int, CommunicationModel], list[tuple[Node, float]]] = {}

    def node(self, layout: Layout) -> Node:
        """Returns a layout as the search knows it."""
        normal = layout.normalized()
        return normal.dims, normal.partial

    def seconds_from(
        self, layout: Layout, itemsize: int, model: CommunicationModel
    ) -> Mapping[Node, float]:
        """Returns the seconds of the fastest path from a layout to every other one."""
        start = self.node(layout)
        seconds = {start: 0.0}
        queue = [(0.0, 0, start)]
        count = itertools.count(1)
        while queue:
            so_far, _, node = heapq.heappop(queue)
            if so_far > seconds[node]:
                continue
            for after, price in self._priced(node, itemsize, model):
                reached = so_far + price
                if reached < seconds.get(after, math.inf):
                    seconds[after] = reached
                    heapq.heappush(queue, (reached, next(count), after))
        return seconds

    def _priced(
        self, node: Node, itemsize: int, model: CommunicationModel
    ) -> list[tuple[Node, float]]:
        """Returns the layouts that one move leads to, with the seconds of the fastest one."""
        key = (node, itemsize, model)
        if key not in self._reached:
            fastest: dict[Node, float] = {}
            for edge in self.edges(node):
                price = self.price(edge, itemsize, model)
                fastest[edge[3]] = min(price, fastest.get(edge[3], math.inf))
            self._reached[key] = list(fastest.items())
        return self._reached[key]

    def edges(self, node: Node) -> list[Edge]:
        """Returns every move from a layout."""
        if node not in self._edges:
            moves = itertools.chain(
                self._splits(node),
                self._gathers(node),
                self._permutes(node),
                self._redistributions(node),
            )
            self._edges[node] = list(moves)
        return self._edges[node]

    def price(self, edge: Edge, itemsize: int, model: CommunicationModel) -> float:
        """Returns the seconds of a move: of the collective, and of storing its result.

        A slice is a view; what leaves a sum pending copies. Pieces that travel are padded before,
        one dimension after another.
        """
        kind, axes, before, after = edge
        if kind == "slice":
            return 0.0
        had, has = (self._elements(node) * itemsize for node in (before, after))
        copied = model.cluster.launch_seconds + model.local_copy(has)
        if kind == "to_partial":
            return copied
        padding = self._uneven(before) * copied if kind == "permute" else 0.0
        count = self.mesh.axes_size(axes)
        wire = {
            "all_reduce": lambda: model.all_reduce(has, axes),
            "reduce_scatter": lambda: model.reduce_scatter(has * count, axes),
            "all_gather": lambda: model.all_gather(had * count, axes),
            "all_to_all": lambda: model.all_to_all(max(had, has), axes),
            "permute": lambda: model.point_to_point(has, axes),
            "redistribute": lambda: self._redistribute_seconds(edge, has, model),
        }
        return wire[kind]() + model.local_copy(has) + padding

    def _uneven(self, node: Node) -> int:
        """Returns in how many dimensions some processes have smaller pieces than others."""
        return sum(any(sub.size % self.mesh.axes_size(sub.axes) for sub in dim) for dim in node[0])

    def _redistribute_seconds(self, edge: Edge, has: int, model: CommunicationModel) -> float:
        _, axes, before, after = edge
        ((old,), (new,)) = next(
            pair for pair in zip(before[0], after[0], strict=True) if pair[0] != pair[1]
        )
        held, cut, members = (self.mesh.axes_size(a) for a in (old.axes, new.axes, axes))
        blocks = (-(-new.size // held), -(-new.size // cut))
        moved = redistribution_messages(new.size, *blocks, members // held, members // cut)
        row = has // -(-new.size // cut)
        return model.point_to_point(moved.elements * row, axes, moved.messages)

    def _elements(self, node: Node) -> int:
        """Elements of the largest piece."""
        return math.prod(
            -(-sub.size // self.mesh.axes_size(sub.axes)) for dim in node[0] for sub in dim
        )

    def _free(self, node: Node) -> Axes:
        used = {axis for dim in node[0] for axis in dim_axes(dim)} | {axis for axis, _ in node[1]}
        return tuple(
            axis
            for axis in self.mesh.dim_names
            if axis not in used and self.mesh.axis_size(axis) > 1
        )

    def _splits(self, node: Node) -> Iterator[Edge]:
        """Slices and reduce_scatters; all_reduces and the way back, to_partial."""
        dims, partial = node
        free, pending = self._free(node), tuple(axis for axis, _ in partial)
        for at, dim in enumerate(dims):
            for axes, after in self.dims[at].put[dim]:
                if set(axes) <= set(free):
                    yield "slice", axes, node, (_with(dims, at, after), partial)
                if set(axes) <= set(pending):
                    left = tuple(pair for pair in partial if pair[0] not in axes)
                    yield "reduce_scatter", axes, node, (_with(dims, at, after), left)
        for count in range(1, len(pending) + 1):
            for axes in itertools.combinations(pending, count):
                left = tuple(pair for pair in partial if pair[0] not in axes)
                yield "all_reduce", axes, node, (dims, left)
        for axis in free:
            for monoid in {monoid for _, monoid in partial} or self.monoids:
                pairs = {**dict(partial), axis: monoid}
                order = tuple((a, pairs[a]) for a in self.mesh.dim_names if a in pairs)
                yield "to_partial", (axis,), node, (dims, order)

    def _gathers(self, node: Node) -> Iterator[Edge]:
        """all_gathers and all_to_alls."""
        dims, partial = node
        for at, dim in enumerate(dims):
            for axes, without in self.dims[at].taken[dim]:
                left = _with(dims, at, without)
                yield "all_gather", axes, node, (left, partial)
                for to, other in enumerate(dims):
                    if to != at:
                        for put, after in self.dims[to].put[other]:
                            if put == axes:
                                yield "all_to_all", axes, node, (_with(left, to, after), partial)
            for axes, moved in self.dims[at].moved[dim]:
                yield "all_to_all", axes, node, (_with(dims, at, moved), partial)

    def _permutes(self, node: Node) -> Iterator[Edge]:
        """Other axes in the places of these, so that each process gets another one's piece."""
        dims, partial = node
        counts = [
            *(self.mesh.axes_size(sub.axes) for dim in dims for sub in dim),
            self.mesh.axes_size(axis for axis, _ in partial),
        ]
        for runs in _runs(self.mesh, tuple(counts)):
            rest = list(runs)
            changed = tuple(tuple(SubDim(sub.size, rest.pop(0)) for sub in dim) for dim in dims)
            (pending,) = rest
            if sorted(pending, key=self.mesh.dim_names.index) != list(pending):
                continue
            after = (changed, tuple((axis, partial[0][1]) for axis in pending))
            if after != node:
                yield "permute", self._moving(node, after), node, after

    def _moving(self, before: Node, after: Node) -> Axes:
        """The axes that don't stay where they are: those over which pieces travel."""
        places = [self._places(node) for node in (before, after)]
        return tuple(a for a in self.mesh.dim_names if places[0].get(a) != places[1].get(a))

    def _places(self, node: Node) -> dict[str, tuple[int, ...]]:
        subs = [sub.axes for dim in node[0] for sub in dim] + [tuple(a for a, _ in node[1])]
        return {
            axis: (at, self.mesh.axes_size(axes[place + 1 :]))
            for at, axes in enumerate(subs)
            for place, axis in enumerate(axes)
        }

    def _redistributions(self, node: Node) -> Iterator[Edge]:
        """Other axes cut a dimension: each process gets a stretch of it from those who have it."""
        dims, partial = node
        free = self._free(node)
        for at, dim in enumerate(dims):
            if len(dim) == 1 and dim[0].axes:
                for axes in _ordered({*free, *dim[0].axes}):
                    recut = normalize_dim((SubDim(dim[0].size, axes),), self.mesh)
                    after = (_with(dims, at, recut), partial)
                    if axes and after != node and recut == (SubDim(dim[0].size, axes),):
                        group = tuple(sorted({*axes, *dim[0].axes}))
                        yield "redistribute", group, node, after


def _with(dims: tuple[DimLayout, ...], at: int, dim: DimLayout) -> tuple[DimLayout, ...]:
    return (*dims[:at], dim, *dims[at + 1 :])


class _DimMoves:
    """What moves can do to one dimension.

    Attributes:
        taken: Per layout, (axes, layout without them): what an all_gather can do.
        put: Per layout, (axes, layout with them): what a slice or a reduce_scatter can do.
        moved: Per layout, (axes, layout with them elsewhere): an all_to_all within the dimension.
    """

    def __init__(self, mesh: ProcessMesh, size: int) -> None:
        self.mesh = mesh
        self.taken: dict[DimLayout, set[tuple[Axes, DimLayout]]] = {}
        self.put: dict[DimLayout, set[tuple[Axes, DimLayout]]] = {}
        self.moved: dict[DimLayout, set[tuple[Axes, DimLayout]]] = {}
        for spelled in _spellings(mesh, size):
            layout = normalize_dim(spelled, mesh)
            for table in (self.taken, self.put, self.moved):
                table.setdefault(layout, set())
            self._add_moves(spelled, layout)

    def _add_moves(self, spelled: DimLayout, layout: DimLayout) -> None:
        for at, sub in enumerate(spelled):
            for kept in range(len(sub.axes)):
                axes = sub.axes[kept:]
                fewer = SubDim(sub.size, sub.axes[:kept])
                without = (*spelled[:at], fewer, *spelled[at + 1 :])
                if not self._nested(sub, fewer):
                    continue
                normal = normalize_dim(without, self.mesh)
                self.taken[layout].add((axes, normal))
                self.put.setdefault(normal, set()).add((axes, layout))
                for to, other in enumerate(without):
                    more = SubDim(other.size, other.axes + axes)
                    if to != at and other.size % self.mesh.axes_size(more.axes) == 0:
                        moved = (*without[:to], more, *without[to + 1 :])
                        self.moved[layout].add((axes, normalize_dim(moved, self.mesh)))

    def _nested(self, sub: SubDim, fewer: SubDim) -> bool:
        """Whether the pieces of `sub` together are those of `fewer`, cut into equal blocks."""
        wide = [_stretch(fewer, self.mesh, rank) for rank in range(self.mesh.size)]
        narrow = [_stretch(sub, self.mesh, rank) for rank in range(self.mesh.size)]
        count = self.mesh.axes_size(sub.axes[len(fewer.axes) :])
        for rank, (start, stop) in enumerate(wide):
            coords = self.mesh.coordinates(rank)
            index = 0
            for axis in sub.axes[len(fewer.axes) :]:
                index = index * self.mesh.axis_size(axis) + coords[axis]
            block = -(-(stop - start) // count)
            mine = (min(start + index * block, stop), min(start + (index + 1) * block, stop))
            if mine != narrow[rank] and (mine[0] < mine[1] or narrow[rank][0] < narrow[rank][1]):
                return False
        return True


def _stretch(sub: SubDim, mesh: ProcessMesh, rank: int) -> tuple[int, int]:
    start, length = (evaluate(e, mesh.coordinates(rank)) for e in local_extent(sub, mesh))
    return start, start + length


def _spellings(mesh: ProcessMesh, size: int) -> Iterator[DimLayout]:
    """Every way to write a layout of a dimension: evenly split factors, or one uneven split."""
    names = [axis for axis in mesh.dim_names if mesh.axis_size(axis) > 1]
    for sizes in _factorizations(size):
        for axes in _assignments(tuple(names), len(sizes)):
            spelled = tuple(SubDim(s, a) for s, a in zip(sizes, axes, strict=True))
            if len(sizes) == 1 or all(
                s % mesh.axes_size(a) == 0 for s, a in zip(sizes, axes, strict=True)
            ):
                yield spelled


@cache
def _factorizations(size: int) -> list[tuple[int, ...]]:
    """All products of factors above 1, in order, that make up a size."""
    found = [(size,)]
    for head in range(2, size):
        if size % head == 0:
            found += [(head, *rest) for rest in _factorizations(size // head)]
    return found


@cache
def _assignments(axes: Axes, places: int) -> list[tuple[Axes, ...]]:
    """All ways to put some of the axes, in order, into places."""
    found: set[tuple[Axes, ...]] = set()
    for chosen in _ordered(axes):
        for cuts in itertools.combinations_with_replacement(range(len(chosen) + 1), places - 1):
            ends = (0, *cuts, len(chosen))
            found.add(tuple(chosen[a:b] for a, b in itertools.pairwise(ends)))
    return sorted(found)


def _ordered(axes: Sequence[str] | set[str]) -> Iterator[Axes]:
    """All selections of axes, in all orders."""
    for count in range(len(axes) + 1):
        yield from itertools.permutations(sorted(axes), count)


@cache
def _runs(mesh: ProcessMesh, counts: tuple[int, ...]) -> list[tuple[Axes, ...]]:
    """All ways to fill places with axes so that each place has its count of processes."""
    names = tuple(axis for axis in mesh.dim_names if mesh.axis_size(axis) > 1)
    return [
        axes
        for axes in _assignments(names, len(counts))
        if all(mesh.axes_size(a) == count for a, count in zip(axes, counts, strict=True))
    ]
