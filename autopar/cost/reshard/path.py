"""Paths: the fastest sequence of moves from one layout to another.

First only moves towards the goal are tried, which is quick: an axis leaves its slot only if it
isn't where the goal wants it, and goes to the goal's slot or becomes free. Then all moves are, as
far as they may lead to something faster: a bound on what is left to do cuts off nearly all of them.
Only with many mesh axes, where splits don't divide evenly, that may not be enough; then it ends.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from autopar.cost.reshard.bound import Bound
from autopar.cost.reshard.moves import LayoutGraph, State, Step
from autopar.cost.reshard.relaxed import Relaxed
from autopar.cost.reshard.slots import Numbers, Slot
from autopar.ir.expr.expression import planned, prod
from autopar.ir.layout import Layout

ROUNDING = 1e-9
"""Relative difference of seconds that doesn't count."""

DIGITS = 9
"""The same, as digits."""

EXACT_AXES = 3
"""Up to so many mesh axes paths are the fastest of all."""

MOST_STATES = 100
"""With more axes, from so many layouts all moves are tried before the best path so far is taken."""

_Entry = tuple[float, float, int, int, int, float, State]
"""A state with what orders the queue, and the seconds of a path through it at least."""


class PathSearch:
    """Searches paths to one goal.

    Args:
        graph: The layouts and the moves between them.
        goal: Where paths lead.
        itemsize: Bytes per element.
    """

    def __init__(self, graph: LayoutGraph, goal: Layout, itemsize: int) -> None:
        self.graph = graph
        self.table = graph.table
        self.goal = goal
        self.itemsize = itemsize
        self.target: State = (self.table.numbered(goal.dims), goal.partial)
        self.goal_slots = self.table.filled(self.target[0])
        self.settled = frozenset(self.goal_slots)
        self.goal_pending = frozenset(goal.partial)
        self.bound = Bound(graph, goal, itemsize)
        self.relaxed = graph.relaxed
        self.is_even = self.table.is_even(self.target[0])
        self._relaxed: dict[bool, list[float]] = {}
        self._numbers: dict[bool, dict[tuple[int, int], int]] = {False: {}, True: {}}
        self._bounds: dict[State, float] = {}
        self._classes: dict[State, State] = {}
        self._steps_from: dict[State, tuple[Step, ...]] = {}
        self.most_states = math.inf if len(graph.axes) <= EXACT_AXES else MOST_STATES
        self.alike = _alike(self.target[0])

    def best(self, source: Layout) -> list[Step] | None:
        """Returns the fastest path from a layout; None if there is none."""
        start = self.start(source)
        steps, _ = self._shortest(start, math.inf, wide=False)
        if steps is None:
            return self._shortest(start, math.inf, wide=True)[0]
        limit = sum(step.seconds for step in steps) * (1 - ROUNDING)
        if limit <= self._bound(start):
            return steps
        return self._shortest(start, limit, wide=True)[0] or steps

    def least_of(self, start: State, most_states: int) -> float:
        """Returns seconds that a path takes at least, after a look at so many layouts at most."""
        steps, _ = self._shortest(start, math.inf, wide=False)
        limit = sum(step.seconds for step in steps) if steps is not None else math.inf
        if limit * (1 - ROUNDING) <= self._bound(start):
            return limit * (1 - ROUNDING)
        _, least = self._shortest(start, limit, wide=True, most_states=most_states)
        return max(least, self._bound(start)) * (1 - ROUNDING)

    def least(self, start: State) -> float:
        """Returns seconds that a path from a state takes at least."""
        return self._bound(start) * (1 - ROUNDING) if start != self.target else 0.0

    def start(self, source: Layout) -> State:
        """Returns the state where paths from a layout begin."""
        return self.table.numbered(source.dims), source.partial

    def _shortest(
        self, start: State, limit: float, *, wide: bool, most_states: float | None = None
    ) -> tuple[list[Step] | None, float]:
        """Returns the fastest path, and seconds that every path takes at least that counts.

        Of equally fast ones it is one with few moves.

        Dijkstra's algorithm towards the goal; with all moves (`wide`) A*, which is Dijkstra's with
        a bound on the rest of the path.

        Args:
            start: Where paths begin.
            limit: Only paths that take less seconds count.
            wide: Whether all moves are tried.
            most_states: From how many layouts on the best path so far is taken.
        """
        most = self.most_states if most_states is None else most_states
        best: dict[State, tuple[float, int]] = {self._class_of(start): (0.0, 0)}
        came: dict[State, tuple[State, Step]] = {}
        # Of states that promise as much, those first that are nearer to the goal, and those whose
        # axes are next to one another, so that few collectives take them away.
        sign, unit = (-1, self._bound(start) or 1.0) if wide else (1, 1.0)
        queue: list[_Entry] = [(0.0, 0.0, 0, 0, 0, 0.0, start)]
        looked_at = 0
        while queue and (looked_at < most or math.isinf(limit)):
            _, seconds, count, _, _, total, state = heapq.heappop(queue)
            seconds, count = sign * seconds, sign * count
            if total >= limit or (seconds, count) > best[self._class_of(state)]:
                continue
            if state == self.target:
                return _path(came, state), total
            looked_at += 1
            for step in self._all_steps(state) if wide else self._steps(state):
                reached = (seconds + step.seconds, count + 1)
                if reached[0] >= limit:
                    continue
                alike = self._class_of(step.state)
                if alike in best and best[alike] <= reached:
                    continue
                left = limit - reached[0]
                total = reached[0] + (self._bound(step.state, left) if wide else 0.0)
                if total < limit:
                    best[alike] = reached
                    came[step.state] = (state, step)
                    promise = round(total / unit, DIGITS) if wide else total
                    runs = self.table.runs_count(step.state[0]) if wide else 0
                    order = (promise, sign * reached[0], sign * reached[1], runs, len(queue))
                    heapq.heappush(queue, (*order, total, step.state))
                    if wide and step.state == self.target:
                        limit = total * (1 - ROUNDING)
        least = min((entry[5] for entry in queue), default=limit)
        steps = _path(came, self.target) if self.target in came else None
        return steps, min(least, limit)

    def _class_of(self, state: State) -> State:
        """Returns the same state for all from which equally fast paths lead to the goal.

        These are states that differ in the order of dimensions that are alike in the goal.
        """
        if not self.alike:
            return state
        found = self._classes.get(state)
        if found is None:
            dims = list(state[0])
            for group in self.alike:
                for position, number in zip(
                    group, sorted(dims[position] for position in group), strict=True
                ):
                    dims[position] = number
            found = self._classes[state] = tuple(dims), state[1]
        return found

    def _bound(self, state: State, enough: float = math.inf) -> float:
        """Returns seconds that any path from a state to the goal takes at least; remembered.

        Args:
            state: Where paths begin.
            enough: Of more seconds than that, it doesn't matter how many they are.
        """
        found = self._bounds.get(state)
        if found is None:
            found = self._relaxed_bound(state)
            if found < enough:
                found = self._bounds[state] = max(found, self._crossing_bound(state))
        return found

    def _relaxed_bound(self, state: State) -> float:
        if self.relaxed is None:
            return 0.0
        is_even = self.is_even and self.table.is_even(state[0])
        if is_even not in self._relaxed:
            self._relaxed[is_even] = self._relaxed_seconds(self.relaxed, is_even)
        return self._relaxed[is_even][self._number(self.relaxed, state, is_even)]

    def _relaxed_seconds(self, relaxed: Relaxed, is_even: bool) -> list[float]:
        nbytes = planned(prod(self.goal.shape)) * self.itemsize
        number = self._number(relaxed, self.target, is_even)
        return relaxed.seconds_to(number, nbytes, is_even=is_even)

    def _number(self, relaxed: Relaxed, state: State, is_even: bool) -> int:
        """Returns the number of a state for `Relaxed`: the sum of those of its dimensions."""
        known = self._numbers[is_even]
        total = relaxed.number((), (axis for axis, _ in state[1]), ()) if state[1] else 0
        for key in enumerate(state[0]):
            number = known.get(key)
            if number is None:
                astray = self._astray(*key, is_even)
                number = relaxed.number(self.table.axes_of(key[1]), (), astray)
                known[key] = number
            total += number
        return total

    def _astray(self, position: int, number: int, is_even: bool) -> list[str]:
        """Returns the axes that split something else of a dimension than they do in the goal.

        Where layouts don't divide evenly, moves of other axes may settle one of the same dimension.
        """
        if not is_even:
            wanted = self.table.axes_of(self.target[0][position])
            return [axis for axis in self.table.axes_of(number) if axis not in wanted]
        slots = self.table.filled_in(position, number)
        return [s.axes[0] for s in slots if s.is_digit and s not in self.settled]

    def _crossing_bound(self, state: State) -> float:
        due = tuple(pair[0] for pair in state[1] if pair not in self.goal_pending)
        if not due and self.table.may_become(state[0], self.target[0]):
            return 0.0
        return self.bound.least_seconds(state[0], () if self.goal.partial else due)

    def _all_steps(self, state: State) -> tuple[Step, ...]:
        """Returns the fastest step to each state that one leads to; remembered."""
        found = self._steps_from.get(state)
        if found is None:
            fastest: dict[State, Step] = {}
            for step in (*self._steps(state), *self.graph.moves(state, self.itemsize)):
                other = fastest.get(step.state)
                if other is None or step.seconds < other.seconds:
                    fastest[step.state] = step
            found = self._steps_from[state] = tuple(fastest.values())
        return found

    # Moves towards the goal

    def _steps(self, state: State) -> Iterator[Step]:
        dims, partial = state
        filled = self.table.filled(dims)
        busy = {axis for slot in filled for axis in slot.axes}
        busy.update(axis for axis, _ in partial)
        yield from self._removals(state, filled)
        yield from self._reductions(state)
        for slot in self.goal_slots:
            if busy.isdisjoint(slot.axes):
                yield from self.graph.slice(state, slot)
        yield from self._redistributions(state, busy)
        monoids = {monoid for _, monoid in partial}
        for axis, monoid in self.goal.partial:
            # Different reductions must not be pending at once: their order would matter.
            if axis not in busy and monoids <= {monoid}:
                yield self.graph.to_partial(state, axis, monoid, self.itemsize)

    def _removals(self, state: State, filled: list[Slot]) -> Iterator[Step]:
        """all_gather, and all_to_all to wherever the axes are wanted."""
        settled = [slot for slot in filled if slot in self.settled]
        fixed = {slot.axes[0] for slot in settled if slot.is_digit}
        for slot in filled:
            if slot in settled or not fixed.isdisjoint(slot.axes):
                continue
            yield from self.graph.gather(state, slot, self.itemsize)
            for other in self.goal_slots:
                if other.axes == slot.axes and other != slot:
                    yield from self.graph.all_to_all(state, slot, other, self.itemsize)

    def _redistributions(self, state: State, busy: set[str]) -> Iterator[Step]:
        for position, (has, wants) in enumerate(zip(state[0], self.target[0], strict=True)):
            if has == wants:
                continue
            old, new = self.table.cut_of(has), self.table.cut_of(wants)
            if old and new and busy.difference(old.axes).isdisjoint(new.axes):
                yield from self.graph.redistribute(state, position, wants, self.itemsize)

    def _reductions(self, state: State) -> Iterator[Step]:
        """all_reduce and reduce_scatter of what is pending but must not stay so."""
        axes = tuple(pair[0] for pair in state[1] if pair not in self.goal_pending)
        if not axes:
            return
        split = {axis for slot in self.goal_slots for axis in slot.axes}
        unsplit = tuple(axis for axis in axes if axis not in split)
        for group in dict.fromkeys((axes, unsplit, *((axis,) for axis in axes))):
            if group:
                yield self.graph.reduce(state, group, self.itemsize)
        for slot in self.goal_slots:
            if set(slot.axes) <= set(axes):
                yield from self.graph.reduce_scatter(state, slot, self.itemsize)


def _alike(dims: Numbers) -> list[list[int]]:
    """Returns groups of positions with equal numbers."""
    groups: dict[int, list[int]] = {}
    for position, number in enumerate(dims):
        groups.setdefault(number, []).append(position)
    return [group for group in groups.values() if len(group) > 1]


def _path(came: dict[State, tuple[State, Step]], state: State) -> list[Step]:
    steps: list[Step] = []
    while state in came:
        state, step = came[state]
        steps.append(step)
    return steps[::-1]
