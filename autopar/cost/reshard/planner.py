"""Resharding: the fastest way from one layout of a tensor to another.

Moves change a layout step by step: collectives, a permutation of the pieces, a dimension cut anew,
and local steps that cost nothing. Of all sequences of moves the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.base.errors import VerificationError
from autopar.cost.collectives import CommunicationModel
from autopar.cost.reshard.buckets import BUCKET_BYTES, FreeSums, SharedModel, sums_of
from autopar.cost.reshard.coarse import Coarse, Coarsening
from autopar.cost.reshard.moves import Step
from autopar.cost.reshard.path import PathSearch
from autopar.cost.reshard.reshards import Move, Reshard
from autopar.cost.reshard.transfers import transfers_between
from autopar.ir.dims import block_size
from autopar.ir.expr.expression import planned, prod
from autopar.ir.fixed import Index, indices_of
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh


class ReshardError(VerificationError):
    """No reshard leads from one layout to another; the problems say why."""


def plan_reshard(
    source: Layout, target: Layout, itemsize: int, model: CommunicationModel
) -> Reshard:
    """Returns the fastest reshard. To plan many, keep a `ReshardPlanner`, which remembers them.

    Args:
        source: The layout that the tensor has.
        target: The layout that is needed.
        itemsize: Bytes per element.
        model: Predicts seconds.

    Raises:
        ReshardError: If the layouts are of different tensors or meshes, or pending over
            different reductions at once, whose order would matter.
    """
    return ReshardPlanner(model).plan(source, target, itemsize)


class ReshardPlanner:
    """Plans reshards and remembers them.

    Args:
        model: Predicts seconds.
        axes: The only mesh axes that layouts split and over which processes may communicate; all
            by default.
    """

    def __init__(self, model: CommunicationModel, axes: tuple[str, ...] | None = None) -> None:
        self.model = model
        self.axes = axes
        self._known: dict[tuple[Layout, Layout, int], Reshard] = {}
        self._coarsenings: dict[ProcessMesh, Coarsening] = {}
        self._searches: dict[tuple[Coarse, Layout, int], PathSearch] = {}
        self._parts: dict[CommunicationModel, ReshardPlanner] = {}

    def on(self, mesh: ProcessMesh) -> ReshardPlanner:
        """Returns the planner of a part of the mesh, on which axes may have fewer processes."""
        model = self.model.on(mesh)
        if model is self.model:
            return self
        if model not in self._parts:
            self._parts[model] = ReshardPlanner(model, self.axes)
        return self._parts[model]

    @cached_property
    def deferred(self) -> ReshardPlanner:
        """The planner of deferred sums, which travel with others."""
        return DeferredSumPlanner(self)

    def plan(self, source: Layout, target: Layout, itemsize: int) -> Reshard:
        """Returns the fastest reshard; arguments and errors as those of `plan_reshard`."""
        if source == target:
            return _IDENTITY
        key = (source, target, itemsize)
        reshard = self._known.get(key)
        if reshard is None:
            reshard = self._known[key] = self._plan(*key)
        return reshard

    def least_seconds(self, source: Layout, target: Layout, itemsize: int) -> float:
        """Returns seconds that a reshard takes at least, much faster than it could be planned.

        Args:
            source: Normalized, as the target is, and of the same tensor.
            target: The layout that is needed.
            itemsize: Bytes per element.
        """
        reshard = self._known.get((source, target, itemsize))
        if reshard is not None:
            return reshard.seconds
        if source == target or 0 in source.shape:
            return 0.0
        if source.mesh != target.mesh:
            return self.plan(source, target, itemsize).seconds
        return self._least(source, target, itemsize)

    def least_seconds_found(
        self, source: Layout, target: Layout, itemsize: int, most_states: int
    ) -> float:
        """Returns seconds that a reshard on one mesh takes at least, after a short look for it.

        Args:
            source: Normalized, as the target is, and of the same tensor.
            target: The layout that is needed.
            itemsize: Bytes per element.
            most_states: At how many layouts on the way to look at most.
        """
        reshard = self._known.get((source, target, itemsize))
        if reshard is not None:
            return reshard.seconds
        if source == target or 0 in source.shape:
            return 0.0
        coarse = self._coarsening(target.mesh).between(source, target)
        return self._search(coarse, target, itemsize).least_of(coarse.state(source), most_states)

    def least_seconds_between(
        self, sources: Sequence[Layout], targets: Sequence[Layout], itemsize: int
    ) -> NDArray[np.float64]:
        """Returns bounds like `least_seconds` from each source to each target on one mesh."""
        if 0 in targets[0].shape or not targets[0].mesh.dim_names:
            return np.zeros((len(sources), len(targets)))
        return self._coarsening(targets[0].mesh).least_seconds(sources, targets, itemsize)

    def _least(self, source: Layout, target: Layout, itemsize: int) -> float:
        coarse = self._coarsening(target.mesh).between(source, target)
        search = self._search(coarse, target, itemsize)
        return search.least(coarse.state(source))

    def _search(self, coarse: Coarse, target: Layout, itemsize: int) -> PathSearch:
        key = (coarse, target, itemsize)
        search = self._searches.get(key)
        if search is None:
            search = PathSearch(coarse.graph, coarse.layout(target), itemsize)
            self._searches[key] = search
        return search

    def _coarsening(self, mesh: ProcessMesh) -> Coarsening:
        found = self._coarsenings.get(mesh)
        if found is None:
            found = Coarsening(self.model, mesh, self.axes or mesh.dim_names)
            self._coarsenings[mesh] = found
        return found

    def _plan(self, source: Layout, target: Layout, itemsize: int) -> Reshard:
        source, target = source.normalized(), target.normalized()
        _check(source, target)
        if source == target:
            return _IDENTITY
        if source.mesh != target.mesh:
            return self._between_slices(source, target, itemsize)
        if (part := self.on(target.mesh)) is not self:
            return part.plan(source, target, itemsize)
        if 0 in source.shape:
            return Reshard((Move("reshape_empty", (), target),), 0.0, 0)
        coarse = self._coarsening(target.mesh).between(source, target)
        steps = self._search(coarse, target, itemsize).best(coarse.layout(source))
        if steps is None:
            raise ReshardError(f"can't reshard {source} to {target}", ["there is no path of moves"])
        return Reshard.from_moves(tuple(_move(step, coarse) for step in steps))

    def _between_slices(self, source: Layout, target: Layout, itemsize: int) -> Reshard:
        """Returns the fastest of some ways.

        Along the axes that both slices have, it is sent split as before, or as after; or blocks
        are sent to others, where it is split along an axis of which the slices have other parts.
        """
        first = source.onto(target.mesh).onto(source.mesh)
        second = target.onto(source.mesh)
        ways = []
        for leaves in dict.fromkeys((first, second)):
            arrives = leaves.onto(target.mesh)
            ways.append(
                (
                    *self.plan(source, leaves, itemsize).moves,
                    *moves_between(self.model, leaves, target.mesh, itemsize),
                    *self.plan(arrives, target, itemsize).moves,
                )
            )
        for leaves, move in transfers_between(self.model, source, target, itemsize):
            before, behind = (
                self.plan(*pair, itemsize).moves
                for pair in ((source, leaves), (move.layout, target))
            )
            ways.append((*before, move, *behind))
        return min(map(Reshard.from_moves, ways), key=lambda way: way.seconds)


class DeferredSumPlanner(ReshardPlanner):
    """Plans the reshards of values that nobody awaits, whose sums travel with others.

    Their sums share a bucket, which pays a latency that a way around would spare, and the way
    around has latencies of its own. So such sums are reduced without one if that is faster in a
    bucket; seconds are still those of moves that are alone.

    Args:
        planner: Plans those of all others.
    """

    def __init__(self, planner: ReshardPlanner) -> None:
        super().__init__(planner.model)
        self._others = planner
        self._direct = ReshardPlanner(FreeSums(planner.model))
        self._shared = SharedModel(planner.model, BUCKET_BYTES)

    def on(self, mesh: ProcessMesh) -> ReshardPlanner:
        """Returns the planner of a part of the mesh; see `ReshardPlanner.on`."""
        part = self._others.on(mesh)
        return self if part is self._others else part.deferred

    def plan(self, source: Layout, target: Layout, itemsize: int) -> Reshard:
        """Returns the reshard that is faster where sums travel with others, in seconds alone.

        Of two: the one that is the fastest alone, and the one with the fastest moves beside sums.
        """
        if source.mesh == target.mesh and (part := self.on(source.mesh)) is not self:
            return part.plan(source, target, itemsize)
        plain = self._others.plan(source, target, itemsize)
        if not source.partial or source.mesh != target.mesh or len(plain.moves) < 2:
            return plain
        key = (source, target, itemsize)
        found = self._known.get(key)
        if found is None:
            moves = self._direct.plan(source, target, itemsize).moves
            direct = Reshard.from_moves(tuple(map(self._alone, moves)))
            is_faster = self._joined(source, direct, itemsize) < self._joined(
                source, plain, itemsize
            )
            found = self._known[key] = direct if is_faster else plain
        return found

    def _joined(self, source: Layout, reshard: Reshard, itemsize: int) -> float:
        """Returns the seconds of a reshard whose sums take their parts of full buckets."""
        pairs = sums_of(self.model, source, reshard, itemsize)
        return sum(self._shared.seconds_of(*pair) for pair in pairs)

    def _alone(self, move: Move) -> Move:
        """Returns a move with the seconds that it takes by itself."""
        model = self.model
        match move.kind:
            case "all_reduce":
                seconds = model.all_reduce(move.bytes, move.axes)
            case "reduce_scatter":
                seconds = model.reduce_scatter(move.bytes * model.members(move.axes), move.axes)
            case _:
                return move
        return replace(move, seconds=seconds + model.local_copy(move.bytes))


_IDENTITY = Reshard((), 0.0, 0)


def moves_between(
    model: CommunicationModel, layout: Layout, mesh: ProcessMesh, itemsize: int
) -> Iterator[Move]:
    """Yields the moves from one slice or box of a mesh to another.

    First the processes that lie in the other part, as far as it crosses this one, one copy of them
    where not all of the other does; from there to the same coordinates on the other; then along the
    axes that are free only there. So processes of neither part have nothing to do with it.

    Args:
        model: Predicts seconds.
        layout: The layout before, split along axes only that are free in both slices.
        mesh: The slice to reach.
        itemsize: Bytes per element.
    """
    root, here, there = mesh.root, dict(layout.mesh.fixed), dict(mesh.fixed)
    nbytes = _largest_piece(layout) * itemsize
    from_ = {axis: _leaves_from(index, there.get(axis)) for axis, index in here.items()}
    crossing = layout.onto(root.at({**there, **from_}.items()))
    if crossing.mesh != layout.mesh:
        yield Move("restrict", (), crossing)
    axes = tuple(a for a in root.dim_names if a in here and there.get(a, from_[a]) != from_[a])
    if axes:
        # What arrives on a run is the same everywhere.
        at = {a: tuple(i) if a in axes and isinstance(i, range) else i for a, i in there.items()}
        sent = layout.onto(root.at({**from_, **at}.items()))
        is_alone = all(isinstance(there[axis], int) for axis in axes)
        seconds = (model.point_to_point if is_alone else model.broadcast)(nbytes, axes)
        yield Move("send", axes, sent, seconds=seconds, bytes=nbytes)
        if at != there:
            yield Move("restrict", (), layout.onto(root.at({**from_, **there}.items())))
    axes = tuple(a for a in mesh.dim_names if a in here and a not in there)
    if axes:
        seconds = model.broadcast(nbytes, axes)
        yield Move("spread", axes, layout.onto(mesh), seconds=seconds, bytes=nbytes)


def _leaves_from(index: Index, wanted: Index | None) -> Index:
    """Returns from where along an axis something leaves for a part of the mesh.

    Args:
        index: Where it is.
        wanted: Where it is to be; None for everywhere.
    """
    if index == wanted:
        return index
    held = indices_of(index)
    if wanted is None:
        return held[0]
    shared = [each for each in indices_of(wanted) if each in held]
    if len(shared) == len(indices_of(wanted)):
        return wanted
    return shared[0] if shared else held[0]


def _largest_piece(layout: Layout) -> int:
    parts = (block_size(s.size, layout.mesh.axes_size(s.axes)) for dim in layout.dims for s in dim)
    return planned(prod(parts))


def _check(source: Layout, target: Layout) -> None:
    problems = []
    if source.mesh.root != target.mesh.root:
        problems.append(f"the meshes differ: {source.mesh} and {target.mesh}")
    if source.shape != target.shape:
        problems.append(f"the shapes differ: {list(source.shape)} and {list(target.shape)}")
    for layout in (source, target):
        if layout.mask is not None or layout.offload:
            problems.append(f"{layout} is masked or offloaded")
        if len(monoids := {monoid for _, monoid in layout.partial}) > 1:
            problems.append(f"{layout} is pending over {sorted(monoids)}, in no defined order")
    if problems:
        raise ReshardError(f"can't reshard {source} to {target}", problems)


def _move(step: Step, coarse: Coarse) -> Move:
    return Move(
        step.kind,
        coarse.fine_axes(step.axes),
        coarse.fine_layout(step.state),
        step.source,
        step.target,
        step.monoid,
        step.seconds,
        step.bytes,
    )
