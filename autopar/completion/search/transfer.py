"""Transfer: tables of the seconds between the forms in which ops leave and need a value.

Planning every reshard that could happen would take longer than the search. So tables hold bounds
that need no planning, and a reshard is planned once a solution would carry it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from autopar.completion.search.network import IMPOSSIBLE, Array
from autopar.completion.space import Form, Space
from autopar.cost.bulk import BulkPlanner

ROUNDING = 1e-9
"""Relative difference of seconds that doesn't count."""


MOST_STATES = 12
"""At how many layouts to look for a reshard until it matters what it takes exactly."""


class Ends:
    """The form that a tensor has with each label of a variable.

    Attributes:
        forms: The different forms.
        index: Per label, the form's position.
    """

    def __init__(self, of_label: Sequence[Form]) -> None:
        self.of_label = tuple(of_label)
        order = {form: at for at, form in enumerate(dict.fromkeys(of_label))}
        self.forms = tuple(order)
        self.index: NDArray[np.intp] = np.array([order[form] for form in of_label], dtype=np.intp)

    def is_same(self, other: Ends) -> NDArray[np.bool_]:
        """Returns with which labels two tensors have the same form."""
        pairs = zip(self.of_label, other.of_label, strict=True)
        return np.array([one is another for one, another in pairs])


Moved = tuple[Ends, Form, Ends, Form, int]
"""A reshard: from which of some forms, to which, and the bytes per element."""


class Transfers:
    """Tables of what reshards take by way of known forms, until they are planned.

    Args:
        space: Prices.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.bulk = BulkPlanner(space.planner.model)
        self._ends: dict[tuple[Form, ...], Ends] = {}
        self._tables: dict[tuple[Ends, Ends, int], Array] = {}
        self._lessons: dict[tuple[Ends, Ends, int], int] = {}
        self._looked: dict[tuple[Form, Form, int], float] = {}

    def ends(self, of_label: Sequence[Form]) -> Ends:
        """Returns the forms of labels; equal ones are the same object."""
        key = tuple(of_label)
        found = self._ends.get(key)
        if found is None:
            found = self._ends[key] = Ends(key)
        return found

    def seconds(self, source: Ends, target: Ends, itemsize: int) -> Array:
        """Returns the seconds of a reshard for each pair of labels, as far as they are known."""
        key = (source, target, itemsize)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._table(source, target, itemsize)
        return table[np.ix_(source.index, target.index)]

    def _table(self, source: Ends, target: Ends, itemsize: int) -> Array:
        forms = list(dict.fromkeys((*source.forms, *target.forms)))
        seconds = self.bulk.seconds([form.layout for form in forms], itemsize)
        at = {form: number for number, form in enumerate(forms)}
        rows, columns = ([at[form] for form in ends.forms] for ends in (source, target))
        table: Array = seconds[np.ix_(rows, columns)]
        return table

    def learn(self, moves: Iterable[Moved]) -> bool:
        """Plans reshards; returns whether one doesn't take what the tables say.

        Args:
            moves: Each (ends, form, ends, form, bytes per element).
        """
        return self._learn(moves, self.space.seconds)

    def _learn(self, moves: Iterable[Moved], price: Callable[[Form, Form, int], float]) -> bool:
        changed = False
        for source, made, target, needed, itemsize in dict.fromkeys(moves):
            table = self._tables[source, target, itemsize]
            at = source.forms.index(made), target.forms.index(needed)
            seconds = price(made, needed, itemsize)
            if abs(seconds - table[at]) > ROUNDING * seconds:
                changed = True
                table[at] = seconds
                self._lessons[source, target, itemsize] = 1 + self.lessons(source, target, itemsize)
        return changed

    def lessons(self, source: Ends, target: Ends, itemsize: int) -> int:
        """Returns how often something was learned of a table."""
        return self._lessons.get((source, target, itemsize), 0)

    def lasting(self, source: Ends, target: Ends) -> Array:
        """Returns what forbids to keep a form beyond one phase that was gathered for it."""
        made, kept = (self._parts(ends)[ends.index] for ends in (source, target))
        return np.where(kept[None, :] < made[:, None], IMPOSSIBLE, 0.0)

    def _parts(self, ends: Ends) -> NDArray[np.int64]:
        """Returns into how many pieces each form splits a tensor."""
        return np.array([self.space.parts(form) for form in ends.forms], dtype=np.int64)


class LeastTransfers(Transfers):
    """Tables of what reshards take at least, until they are planned."""

    def look(self, moves: Iterable[Moved]) -> bool:
        """Looks for reshards for a short time; returns whether one takes longer than known.

        Few reshards, of which hardly any belongs to a plan worth having, take most of the planning.
        """
        return self._learn(moves, self._looked_at)

    def _looked_at(self, source: Form, target: Form, itemsize: int) -> float:
        planned = source.seconds.get((target, itemsize))
        if planned is not None:
            return planned
        key = (source, target, itemsize)
        if key not in self._looked:
            self._looked[key] = self.space.planner.least_seconds_found(
                source.layout, target.layout, itemsize, MOST_STATES
            )
        return self._looked[key]

    def _table(self, source: Ends, target: Ends, itemsize: int) -> Array:
        rows, columns = ([form.layout for form in ends.forms] for ends in (source, target))
        table = self.space.planner.least_seconds_between(rows, columns, itemsize)
        columns_of = {form: column for column, form in enumerate(target.forms)}
        for row, made in enumerate(source.forms):
            for (needed, size), planned in made.seconds.items():
                if size == itemsize and needed in columns_of:
                    table[row, columns_of[needed]] = planned
        return table
