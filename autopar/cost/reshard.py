"""Resharding: the fastest way from one layout of a tensor to another.

A shortest path: layouts are the nodes, moves (a collective or a local step) the edges, seconds the
lengths. Moves are generated towards the goal, so the graph stays small: an axis leaves its slot
only if it isn't where the goal wants it, and goes to the goal's slot or becomes free. If the best
path found so undoes a split that it makes again later, axes may also be parked in other
dimensions: S0S1 -> S1S0 then takes three all_to_alls instead of a full gather.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from autopar.cost.collectives import CommunicationModel
from autopar.cost.slots import (
    Numbers,
    Place,
    Slot,
    SlotTable,
)
from autopar.ir.errors import VerificationError
from autopar.ir.layout import Layout, Partial
from autopar.ir.mesh import ProcessMesh

COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
LOCAL_MOVES = ("slice", "to_partial", "reshape_empty")


class ReshardError(VerificationError):
    """No reshard leads from one layout to another; the problems say why."""


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a reshard.

    Attributes:
        kind: One of `COLLECTIVES` or `LOCAL_MOVES`. `to_partial` keeps the tensor on the first
            process of the axis and puts the monoid's identity elsewhere; `reshape_empty` gives a
            tensor without elements its new local shape.
        axes: The mesh axes of the group, major to minor.
        layout: The layout afterwards.
        source: The sub-dimension that the axes split before and no longer do.
        target: The sub-dimension that they split from now on. Its further axes are major to them.
        monoid: The reduction of all_reduce, reduce_scatter and to_partial.
        seconds: Predicted time.
        bytes: Size of the result of a collective on the rank with the largest piece; 0 if local.
    """

    kind: str
    axes: tuple[str, ...]
    layout: Layout
    source: Place | None = None
    target: Place | None = None
    monoid: str = ""
    seconds: float = 0.0
    bytes: int = 0

    def __str__(self) -> str:
        over = f" {self.monoid}" if self.monoid else ""
        return f"{self.kind}{over} over {','.join(self.axes)} -> {self.layout}"


@dataclass(frozen=True, slots=True)
class Reshard:
    """A way from one layout to another.

    Attributes:
        moves: In order; empty if the layouts are the same.
        seconds: Predicted time.
        bytes: Results of all collectives, on the rank with the largest pieces.
    """

    moves: tuple[Move, ...]
    seconds: float
    bytes: int


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
    """

    def __init__(self, model: CommunicationModel) -> None:
        self.model = model
        self._known: dict[tuple[Layout, Layout, int], Reshard] = {}
        self._tables: dict[ProcessMesh, SlotTable] = {}

    def plan(self, source: Layout, target: Layout, itemsize: int) -> Reshard:
        """Returns the fastest reshard; arguments and errors as those of `plan_reshard`."""
        if source == target:
            return _IDENTITY
        key = (source, target, itemsize)
        reshard = self._known.get(key)
        if reshard is None:
            reshard = self._known[key] = self._plan(*key)
        return reshard

    def _plan(self, source: Layout, target: Layout, itemsize: int) -> Reshard:
        source, target = source.normalized(), target.normalized()
        _check(source, target)
        if source == target:
            return _IDENTITY
        if 0 in source.shape:
            return Reshard((Move("reshape_empty", (), target),), 0.0, 0)
        table = self._tables.setdefault(target.mesh, SlotTable(target.mesh))
        search = _Search(self.model, table, target, itemsize)
        steps = search.shortest(source)
        if steps is None:
            raise ReshardError(f"can't reshard {source} to {target}", ["there is no path of moves"])
        if _undoes(steps) and (limit := search.seconds_at_stake(steps)):
            steps = search.shortest(source, parking=True, limit=limit) or steps
        moves = tuple(step.move(table) for step in steps)
        return Reshard(
            moves, sum(move.seconds for move in moves), sum(move.bytes for move in moves)
        )


_IDENTITY = Reshard((), 0.0, 0)


def _check(source: Layout, target: Layout) -> None:
    problems = []
    if source.mesh != target.mesh:
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


State = tuple[Numbers, Partial]


@dataclass(frozen=True, slots=True)
class _Step:
    """An edge of the search: a move before its layout is built."""

    kind: str
    axes: tuple[str, ...]
    state: State
    seconds: float
    bytes: int
    source: Place | None = None
    target: Place | None = None
    monoid: str = ""

    def move(self, table: SlotTable) -> Move:
        layout = Layout(table.mesh, table.dims(self.state[0]), self.state[1])
        return Move(
            self.kind,
            self.axes,
            layout,
            self.source,
            self.target,
            self.monoid,
            self.seconds,
            self.bytes,
        )


def _undoes(steps: list[_Step]) -> bool:
    """Whether a path makes data larger, at a cost, before it splits it."""
    grown = False
    for step in steps:
        if step.target is not None and grown:
            return True
        grown = grown or step.kind in ("all_gather", "all_reduce")
    return False


@dataclass
class _Search:
    """Searches paths to one goal."""

    model: CommunicationModel
    table: SlotTable
    goal: Layout
    itemsize: int
    target: State = field(init=False)
    goal_slots: list[Slot] = field(init=False)
    settled: frozenset[Slot] = field(init=False)
    goal_pending: frozenset[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.target = (self.table.numbered(self.goal.dims), self.goal.partial)
        self.goal_slots = self.table.filled(self.target[0])
        self.settled = frozenset(self.goal_slots)
        self.goal_pending = frozenset(self.goal.partial)

    def shortest(
        self, source: Layout, *, parking: bool = False, limit: float = math.inf
    ) -> list[_Step] | None:
        """Dijkstra's algorithm; among equally fast paths the one with the fewest moves.

        Only paths faster than `limit` seconds count.
        """
        start: State = (self.table.numbered(source.dims), source.partial)
        best: dict[State, tuple[float, int]] = {start: (0.0, 0)}
        came: dict[State, tuple[State, _Step]] = {}
        queue: list[tuple[float, int, int, State]] = [(0.0, 0, 0, start)]
        serial = 0
        while queue:
            seconds, count, _, state = heapq.heappop(queue)
            if (seconds, count) > best[state]:
                continue
            if state == self.target:
                return _path(came, state)
            for step in self._steps(state, parking):
                reached = (seconds + step.seconds, count + 1)
                if reached[0] >= limit:
                    continue
                if step.state not in best or reached < best[step.state]:
                    best[step.state] = reached
                    came[step.state] = (state, step)
                    serial += 1
                    heapq.heappush(queue, (*reached, serial, step.state))
        return None

    def seconds_at_stake(self, steps: list[_Step]) -> float:
        """Returns the seconds of a path, or 0 if they are latency, which no detour makes less."""
        latency = sum(self.model.all_gather(0, step.axes) for step in steps if step.seconds)
        seconds = sum(step.seconds for step in steps)
        return seconds if seconds > 1.1 * latency else 0.0

    def _steps(self, state: State, parking: bool) -> Iterator[_Step]:
        dims, partial = state
        filled = self.table.filled(dims)
        busy = {axis for slot in filled for axis in slot.axes}
        pending = {axis for axis, _ in partial}
        wanted = [*self.goal_slots, *(self._parking(dims, filled) if parking else ())]
        yield from self._removals(state, filled, wanted)
        yield from self._reductions(state, wanted)
        for slot in wanted:
            if busy.isdisjoint(slot.axes) and pending.isdisjoint(slot.axes):
                after = self.table.fill(dims, slot)
                if after is not None:
                    yield self._local("slice", slot.axes, (after, partial), target=slot.place)
        monoids = {monoid for _, monoid in partial}
        for axis, monoid in self.goal.partial:
            # Different reductions must not be pending at once: their order would matter.
            if axis not in busy and axis not in pending and monoids <= {monoid}:
                now = self._with(partial, axis, monoid)
                yield self._local("to_partial", (axis,), (dims, now), monoid=monoid)

    def _removals(self, state: State, filled: list[Slot], wanted: list[Slot]) -> Iterator[_Step]:
        """all_gather, and all_to_all to wherever the axes are wanted."""
        dims, partial = state
        settled = [slot for slot in filled if slot in self.settled]
        fixed = {slot.axes[0] for slot in settled if slot.is_digit}
        for slot in filled:
            if slot in settled or not fixed.isdisjoint(slot.axes):
                continue
            after = self.table.clear(dims, slot)
            if after is None:
                continue
            yield self._gather(slot, dims, (after, partial))
            for other in wanted:
                if other.axes != slot.axes or other == slot:
                    continue
                both = self.table.fill(dims, other)
                moved = self.table.clear(both, slot) if both is not None else None
                if moved is not None:
                    yield self._exchange(slot, other, dims, (moved, partial))

    def _reductions(self, state: State, wanted: list[Slot]) -> Iterator[_Step]:
        """all_reduce and reduce_scatter of what is pending but must not stay so."""
        dims, partial = state
        due = [pair for pair in partial if pair not in self.goal_pending]
        if not due:
            return
        monoid = due[0][1]
        axes = tuple(axis for axis, _ in due)
        split = {axis for slot in self.goal_slots for axis in slot.axes}
        unsplit = tuple(axis for axis in axes if axis not in split)
        for group in dict.fromkeys((axes, unsplit, *((axis,) for axis in axes))):
            if group:
                left = tuple(pair for pair in partial if pair[0] not in group)
                nbytes = self._bytes(dims)
                seconds = self._stored(nbytes, self.model.all_reduce(nbytes, group))
                yield _Step("all_reduce", group, (dims, left), seconds, nbytes, monoid=monoid)
        for slot in wanted:
            if not set(slot.axes) <= set(axes):
                continue
            after = self.table.fill(dims, slot)
            if after is not None:
                left = tuple(pair for pair in partial if pair[0] not in slot.axes)
                nbytes = self._bytes(after)
                padded = nbytes * self.table.count(slot.axes)
                seconds = self.model.reduce_scatter(padded, slot.axes)
                yield _Step(
                    "reduce_scatter",
                    slot.axes,
                    (after, left),
                    self._stored(nbytes, seconds),
                    nbytes,
                    target=slot.place,
                    monoid=monoid,
                )

    def _parking(self, dims: Numbers, filled: list[Slot]) -> Iterator[Slot]:
        """Slots for axes on their way: in sub-dimensions that nothing else splits."""
        slots = (*self.goal_slots, *filled)
        axes = dict.fromkeys(slot.axes[0] for slot in slots if len(slot.axes) == 1)
        for place in self.table.whole_places(dims):
            for axis in axes:
                count = self.table.count((axis,))
                if place.size % count == 0:
                    inner = place.size // count * place.inner
                    yield Slot((axis,), Place(place.dim, place.outer, count, inner))

    def _gather(self, slot: Slot, dims: Numbers, state: State) -> _Step:
        nbytes = self._bytes(state[0])
        padded = self._bytes(dims) * self.table.count(slot.axes)
        seconds = self._stored(nbytes, self.model.all_gather(padded, slot.axes))
        return _Step("all_gather", slot.axes, state, seconds, nbytes, source=slot.place)

    def _exchange(self, slot: Slot, other: Slot, dims: Numbers, state: State) -> _Step:
        nbytes = self._bytes(state[0])
        largest = max(self._bytes(dims), nbytes)
        seconds = self._stored(nbytes, self.model.all_to_all(largest, slot.axes))
        return _Step("all_to_all", slot.axes, state, seconds, nbytes, slot.place, other.place)

    def _stored(self, nbytes: int, seconds: float) -> float:
        """Adds the time to store a result, so that one move wins over two that send as much.

        Local moves count nothing: what they cost would decide between equal collectives.
        """
        return seconds + self.model.local_copy(nbytes)

    def _local(
        self,
        kind: str,
        axes: tuple[str, ...],
        state: State,
        target: Place | None = None,
        monoid: str = "",
    ) -> _Step:
        return _Step(kind, axes, state, 0.0, 0, target=target, monoid=monoid)

    def _with(self, partial: Partial, axis: str, monoid: str) -> Partial:
        pending = {**dict(partial), axis: monoid}
        return tuple((name, pending[name]) for name in self.goal.mesh.dim_names if name in pending)

    def _bytes(self, dims: Numbers) -> int:
        """Bytes of the largest piece."""
        return self.table.elements(dims) * self.itemsize


def _path(came: dict[State, tuple[State, _Step]], state: State) -> list[_Step]:
    steps: list[_Step] = []
    while state in came:
        state, step = came[state]
        steps.append(step)
    return steps[::-1]
