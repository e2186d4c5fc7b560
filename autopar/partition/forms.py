"""Forms: the layouts in which one serial value exists on the ranks, and how they arise.

A value is produced in one layout and needed in others. Each other form comes from a cheaper one
that is there, so that a pending sum, for example, is reduced once and the result is cut up for
all who need pieces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from autopar.cost.reshard import ReshardPlanner
from autopar.ir.layout import Layout, dim_axes
from autopar.ir.program import Op

MAX_ORDERED = 4
"""Up to so many forms all orders of making them are compared; beyond, they are made as needed."""

ROUNDING = 1e-9
"""Relative difference of seconds that doesn't count."""

Lifetime = tuple[str, int]
"""A phase of a microbatch. What was gathered in one isn't kept for another."""


def lifetime_of(op: Op) -> Lifetime:
    """Returns the lifetime in which an op reads."""
    return op.phase, op.microbatch


@dataclass
class Forms:
    """The forms of one value.

    Attributes:
        itemsize: Bytes per element.
        stored: The layout in which the value is stored.
        needed: The layouts in which it will be read in each lifetime, each once, in order of
            first use.
        names: Name of each form that exists from when it is made.
        gathered: Name of each form that exists in a lifetime: those larger than the first one.
            A gathered parameter is gathered again for the backward pass.
        parents: The form that each needed one is made from, where that was decided in advance.
    """

    itemsize: int
    stored: Layout
    needed: dict[Lifetime, list[Layout]] = field(default_factory=dict)
    names: dict[Layout, str] = field(default_factory=dict)
    gathered: dict[Lifetime, dict[Layout, str]] = field(default_factory=dict)
    parents: dict[Lifetime, dict[Layout, Layout]] = field(default_factory=dict)

    def need(self, layout: Layout, lifetime: Lifetime) -> None:
        """Notes that a layout will be read."""
        needed = self.needed.setdefault(lifetime, [])
        if layout not in needed:
            needed.append(layout)

    def add(self, layout: Layout, name: str, lifetime: Lifetime) -> None:
        """Notes that a form exists."""
        if layout == self.stored or not self.names or not self.is_gathered(layout):
            self.names[layout] = name
        else:
            self.gathered.setdefault(lifetime, {})[layout] = name

    def there(self, lifetime: Lifetime) -> Mapping[Layout, str]:
        """Returns the names of the forms that can be read in a lifetime."""
        gathered = self.gathered.get(lifetime)
        return {**self.names, **gathered} if gathered else self.names

    def is_gathered(self, layout: Layout) -> bool:
        """Whether a form is larger than the one that the value has at first."""
        return _parts(layout) < _parts(next(iter(self.names)))

    def parent(self, layout: Layout, lifetime: Lifetime, planner: ReshardPlanner) -> Layout | None:
        """Returns the form that should be there before this one is made, if any."""
        if lifetime not in self.parents:
            self.parents[lifetime] = self._tree(lifetime, planner)
        return self.parents[lifetime].get(layout)

    def nearest(self, layout: Layout, lifetime: Lifetime, planner: ReshardPlanner) -> Layout:
        """Returns the existing form from which a layout is made fastest."""
        there = self.there(lifetime)
        if len(there) == 1:
            return next(iter(there))
        return min(there, key=lambda form: self._seconds(form, layout, planner))

    def _tree(self, lifetime: Lifetime, planner: ReshardPlanner) -> dict[Layout, Layout]:
        """Chooses the parents with the least time in sum.

        In the order of their making, every form comes from the nearest of those before it; the
        best tree is that of some order. A pending value may be reduced on the way although nobody
        needs that form: it serves all that do, in later lifetimes too.
        """
        there = list(self.there(lifetime))
        missing = [layout for layout in self.needed.get(lifetime, ()) if layout not in there]
        if not 0 < len(missing) <= MAX_ORDERED:
            return {}
        reduced = there[0].without_partial().normalized()
        ways = [missing]
        if reduced not in there and reduced not in missing:
            ways.insert(0, [reduced, *missing])
        elif len(missing) == 1:
            return {}
        orders = (order for way in ways for order in permutations(way))
        trees = [self._grow(order, list(there), planner) for order in orders]
        least = min(seconds for seconds, _ in trees)
        return next(tree for seconds, tree in trees if seconds <= least * (1 + ROUNDING))

    def _grow(
        self, order: Sequence[Layout], there: list[Layout], planner: ReshardPlanner
    ) -> tuple[float, dict[Layout, Layout]]:
        total = 0.0
        parents: dict[Layout, Layout] = {}
        for layout in order:
            costs = [self._seconds(form, layout, planner) for form in there]
            nearest = min(range(len(there)), key=costs.__getitem__)
            total += costs[nearest]
            parents[layout] = there[nearest]
            there.append(layout)
        return total, parents

    def _seconds(self, source: Layout, target: Layout, planner: ReshardPlanner) -> float:
        return planner.plan(source, target, self.itemsize).seconds


def _parts(layout: Layout) -> int:
    """Returns into how many different pieces a layout splits a value."""
    return math.prod(layout.mesh.axes_size(dim_axes(dim)) for dim in layout.dims)
