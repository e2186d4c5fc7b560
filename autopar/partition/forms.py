"""Forms: the layouts in which one serial value exists on the ranks, and how they arise.

A value is produced in one layout and needed in others. Each other form comes from a cheaper one
that is there, so that a pending sum, for example, is reduced once and the result is cut up for
all who need pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations

from autopar.cost.reshard import ReshardPlanner
from autopar.ir.layout import Layout

MAX_ORDERED = 4
"""Up to so many forms all orders of making them are compared; beyond, they are made as needed."""


@dataclass
class Forms:
    """The forms of one value.

    Attributes:
        itemsize: Bytes per element.
        needed: The layouts in which it will be read, each once, in order of first use.
        names: Name of each form that exists.
        parents: The form that each needed one is made from, where that was decided in advance.
    """

    itemsize: int
    needed: list[Layout] = field(default_factory=list)
    names: dict[Layout, str] = field(default_factory=dict)
    parents: dict[Layout, Layout] | None = None

    def parent(self, layout: Layout, planner: ReshardPlanner) -> Layout | None:
        """Returns the form that should be there before this one is made, if any."""
        if self.parents is None:
            self.parents = self._tree(planner)
        return self.parents.get(layout)

    def nearest(self, layout: Layout, planner: ReshardPlanner) -> Layout:
        """Returns the existing form from which a layout is made fastest."""
        if len(self.names) == 1:
            return next(iter(self.names))
        return min(self.names, key=lambda form: self._seconds(form, layout, planner))

    def _tree(self, planner: ReshardPlanner) -> dict[Layout, Layout]:
        """Chooses the parents with the least time in sum.

        In the order of their making, every form comes from the nearest of those before it; the
        best tree is that of some order.
        """
        missing = [layout for layout in self.needed if layout not in self.names]
        if not 1 < len(missing) <= MAX_ORDERED:
            return {}
        trees = [self._grow(order, planner) for order in permutations(missing)]
        return min(trees, key=lambda tree: tree[0])[1]

    def _grow(
        self, order: Sequence[Layout], planner: ReshardPlanner
    ) -> tuple[float, dict[Layout, Layout]]:
        there = list(self.names)
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
