"""Transfer: tables of the seconds between the forms in which ops leave and need a value.

Planning every reshard that could happen would take longer than the search. So tables hold bounds
that need no planning, and a reshard is planned once a solution would carry it out.

Of values that nobody waits for sums travel together (`completion.buckets`); they have tables of
their own, in which a sum takes a part of a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.completion.problem.buckets import AWAITED, DeferredSums
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.space import Form, Space
from autopar.completion.search.effort import (
    LONG_WAYS,
    LOOK_WORK,
    PAIR_WORK,
    PATH_WORK,
    PLAN_WORK,
    TABLE_WORK,
)
from autopar.completion.search.network.candidates import Candidates
from autopar.completion.search.network.network import IMPOSSIBLE, Array
from autopar.completion.search.watch import Watch
from autopar.cost.reshard.buckets import AddedModel, SharedModel, sums_of
from autopar.cost.reshard.bulk import BulkPlanner
from autopar.cost.reshard.path import EXACT_AXES
from autopar.cost.reshard.planner import ReshardPlanner

ROUNDING = 1e-9
"""Relative difference of seconds that doesn't count."""


MOST_STATES = 12
"""At how many layouts to look for a reshard until it matters what it takes exactly."""


class Ends:
    """The form that a tensor has with each label of a variable.

    Attributes:
        forms: The different forms.
        position: Of each of them.
        index: Per label, the form's position.
        may_pend: Whether a sum is pending in one of them.
    """

    def __init__(self, of_label: Sequence[Form]) -> None:
        self.of_label = tuple(of_label)
        self.position = {form: index for index, form in enumerate(dict.fromkeys(of_label))}
        self.forms = tuple(self.position)
        self.may_pend = any(form.layout.partial for form in self.forms)
        self.index: NDArray[np.intp] = np.array(
            [self.position[form] for form in of_label], dtype=np.intp
        )

    def is_same(self, other: Ends) -> NDArray[np.bool_]:
        """Returns with which labels two tensors have the same form."""
        pairs = zip(self.of_label, other.of_label, strict=True)
        return np.array([one is another for one, another in pairs])


Moves = tuple[int, Ends, int, Ends, "Tensors"]
"""A reshard: from a variable, with its forms, to another; and of what."""

Moved = tuple[Ends, Form, Ends, Form, "Tensors"]
"""A reshard: between which ends, from which form to which, and of what."""


@dataclass(frozen=True)
class Tensors:
    """Of which tensors a reshard is.

    Attributes:
        itemsize: Bytes per element.
        group: With which others their sums travel (`DeferredSums`); None where they are alone.
        times: How often it is carried out.
        lasting: How often it is carried out if it doesn't gather: the result stays.
    """

    itemsize: int
    group: str | None = None
    times: int = 1
    lasting: int = 1

    @property
    def once(self) -> Tensors:
        """The same of a reshard that is carried out once: tables are of those."""
        return Tensors(self.itemsize, self.group)


_Key = tuple[Ends, Ends, Tensors]


def _is_alike(made: Form, one: Tensors, other: Tensors) -> bool:
    """Whether a reshard from a form takes as long for some tensors as for others."""
    return one.itemsize == other.itemsize and (one.group == other.group or not made.layout.partial)


class Transfers:
    """Tables of what reshards take by way of known forms, until they are planned.

    Args:
        space: Prices.
        bucket_bytes: Bytes of a bucket at most, by group.
        watch: Says when no more tables are to be made.
    """

    def __init__(self, space: Space, bucket_bytes: Mapping[str, int], watch: Watch) -> None:
        self.space = space
        self.watch = watch
        self._ends: dict[tuple[Form, ...], Ends] = {}
        self._tables: dict[_Key, Array] = {}
        self._lessons: dict[_Key, int] = {}
        self._looked: dict[tuple[Form, Form, Tensors], float] = {}
        self._ways = LONG_WAYS if len(space.axes) > EXACT_AXES else 1
        model = space.planner.model
        self._shared = {group: SharedModel(model, nbytes) for group, nbytes in bucket_bytes.items()}
        self._bulk: dict[str | None, BulkPlanner] = {None: BulkPlanner(model)}
        for group, shared in self._shared.items():
            self._bulk[group] = BulkPlanner(shared)

    @property
    def shares(self) -> bool:
        """Whether there are sums that may travel together."""
        return bool(self._shared)

    def ends(self, of_label: Sequence[Form]) -> Ends:
        """Returns the forms of labels; equal ones are the same object."""
        key = tuple(of_label)
        found = self._ends.get(key)
        if found is None:
            found = self._ends[key] = Ends(key)
        return found

    def reshard_seconds(self, source: Ends, target: Ends, of: Tensors) -> Array:
        """Returns the seconds of a reshard for each pair of labels, as far as they are known.

        Raises:
            TimeIsUp: If the table isn't known yet, and the search had to end before.
        """
        key = (source, target, of.once)
        table = self._tables.get(key)
        if table is None:
            self.watch.check()
            table = self._tables[key] = self._table(*key)
        seconds: Array = table.take(target.index, axis=1).take(source.index, axis=0)
        return seconds if of.times == 1 else self._times(source, target, of) * seconds

    def _times(self, source: Ends, target: Ends, of: Tensors) -> Array:
        """Returns how often a reshard is carried out for each pair of labels."""
        if of.lasting == of.times:
            return np.array(float(of.times))
        made, needed = (self._parts(ends)[ends.index] for ends in (source, target))
        return np.where(needed[None, :] < made[:, None], float(of.times), float(of.lasting))

    def _table(self, source: Ends, target: Ends, of: Tensors) -> Array:
        forms = list(dict.fromkeys((*source.forms, *target.forms)))
        self.watch.spend(TABLE_WORK + PATH_WORK * len(forms) ** 3)
        layouts = [form.layout for form in forms]
        # Nobody joins tensors whose sizes are open (`sums_of`).
        is_open = not all(isinstance(size, int) for size in layouts[0].shape)
        planner = self._bulk[None if is_open else of.group]
        seconds = planner.reshard_seconds(layouts, of.itemsize)
        number_of = {form: number for number, form in enumerate(forms)}
        rows, columns = ([number_of[form] for form in ends.forms] for ends in (source, target))
        table: Array = seconds[np.ix_(rows, columns)]
        return table

    def known(self, move: Moves, labels: Sequence[int]) -> float:
        """Returns the seconds of a reshard for the labels of its variables, as far as known."""
        one, source, other, target, of = move
        cell = source.index[labels[one]], target.index[labels[other]]
        seconds = float(self._tables[source, target, of.once][cell])
        if of.times == 1:
            return seconds
        times = np.broadcast_to(
            self._times(source, target, of), (len(source.index), len(target.index))
        )
        return seconds * float(times[labels[one], labels[other]])

    def learn(self, moves: Iterable[Moved]) -> bool:
        """Plans reshards; returns whether one doesn't take what the tables say."""
        return self._learn(moves, self._planned)

    def _learn(self, moves: Iterable[Moved], price: Callable[[Form, Form, Tensors], float]) -> bool:
        changed = False
        of_once = ((a, made, b, needed, of.once) for a, made, b, needed, of in moves)
        for source, made, target, needed, of in dict.fromkeys(of_once):
            key = source, target, of
            table = self._tables[key]
            cell = source.position[made], target.position[needed]
            seconds = price(made, needed, of)
            if abs(seconds - table[cell]) > ROUNDING * seconds:
                changed = True
                self._set(made, needed, of, seconds)
        return changed

    def _set(self, made: Form, needed: Form, of: Tensors, seconds: float) -> None:
        """Enters the seconds of a reshard into every table that has it."""
        for key, table in self._tables.items():
            source, target, other = key
            row, column = source.position.get(made), target.position.get(needed)
            if row is None or column is None or not _is_alike(made, of, other):
                continue
            if abs(seconds - table[row, column]) > ROUNDING * seconds:
                table[row, column] = seconds
                self._lessons[key] = 1 + self.lessons(*key)

    def _planned(self, made: Form, needed: Form, of: Tensors) -> float:
        """Returns the seconds of a reshard as it is carried out."""
        if (needed, of.itemsize) not in made.seconds:
            self.watch.spend(PLAN_WORK * self._ways)
        if of.group is None or not made.layout.partial:
            return self.space.reshard_seconds(made, needed, of.itemsize)
        shared, model = self._shared[of.group], self.space.planner.model
        reshard = self.space.plan(made, needed, of.itemsize, deferred=of.group != AWAITED)
        moves = sums_of(model, made.layout, reshard, of.itemsize)
        return sum(shared.seconds_of(*pair) for pair in moves)

    def lessons(self, source: Ends, target: Ends, of: Tensors) -> int:
        """Returns how often something was learned of a table."""
        return self._lessons.get((source, target, of.once), 0)

    def lasting(self, source: Ends, target: Ends) -> Array:
        """Returns what forbids to keep a form beyond one phase that was gathered for it."""
        made, kept = (self._parts(ends)[ends.index] for ends in (source, target))
        return np.where(kept[None, :] < made[:, None], IMPOSSIBLE, 0.0)

    def _parts(self, ends: Ends) -> NDArray[np.int64]:
        """Returns into how many pieces each form splits a tensor."""
        return np.array([self.space.parts(form) for form in ends.forms], dtype=np.int64)


class LeastTransfers(Transfers):
    """Tables of what reshards take at least, until they are planned.

    Of awaited values sums take what they add to others. Only what begins with a sum that is pending
    travels so: a gather may not pass for a sum of zeros, which would have no latency.
    """

    def __init__(self, space: Space, bucket_bytes: Mapping[str, int], watch: Watch) -> None:
        super().__init__(space, bucket_bytes, watch)
        self._shared[AWAITED] = AddedModel(space.planner.model)
        self._planners: dict[str | None, ReshardPlanner] = {
            group: ReshardPlanner(shared) for group, shared in self._shared.items()
        }
        self._planners[None] = space.planner

    def look(self, moves: Iterable[Moved]) -> bool:
        """Looks for reshards for a short time; returns whether one takes longer than known.

        Few reshards, of which hardly any belongs to a plan worth having, take most of the planning.
        """
        return self._learn(moves, self._looked_at)

    def _looked_at(self, source: Form, target: Form, of: Tensors) -> float:
        if (target, of.itemsize) in source.seconds:
            return self._planned(source, target, of)
        key = (source, target, of)
        if key not in self._looked:
            self.watch.spend(LOOK_WORK * self._ways)
            planner = self._planners[of.group if source.layout.partial else None]
            self._looked[key] = planner.least_seconds_found(
                source.layout, target.layout, of.itemsize, MOST_STATES
            )
        return self._looked[key]

    def _table(self, source: Ends, target: Ends, of: Tensors) -> Array:
        columns = [form.layout for form in target.forms]
        self.watch.spend(TABLE_WORK + PAIR_WORK * len(source.forms) * len(columns))
        table = np.empty((len(source.forms), len(columns)))
        is_pending = np.array([bool(form.layout.partial) for form in source.forms])
        for group, these in ((of.group, is_pending), (None, ~is_pending)):
            if rows := [source.forms[row].layout for row in np.flatnonzero(these)]:
                planner = self._planners[group]
                table[these] = planner.least_seconds_between(rows, columns, of.itemsize)
        for row, made in enumerate(source.forms):
            for column, needed in enumerate(target.forms):
                if (needed, of.itemsize) in made.seconds:
                    table[row, column] = self._planned(made, needed, of)
        return table


def most_bytes(graph: Graph, candidates: Sequence[Candidates]) -> Mapping[str, int]:
    """Returns by group the bytes of all sums that may travel together.

    Args:
        graph: The graph.
        candidates: Per op.
    """
    deferred = graph.shared(DeferredSums)
    may_defer = dict.fromkeys(
        value
        for node, ways in zip(graph.nodes, candidates, strict=True)
        for value, forms in zip(
            (*node.results, *node.operands),
            (*ways.produced, *ways.consumed),
            strict=True,
        )
        if value in deferred.group and any(form.layout.partial for form in forms)
    )
    groups = dict.fromkeys(map(deferred.group_of, may_defer))
    return {group: deferred.most_bytes(group, may_defer) for group in groups if group is not None}
