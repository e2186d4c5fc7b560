"""Forms: the layouts in which one serial value exists on the ranks, and how they arise.

A value is produced in one layout and needed in others. Each other form comes from a cheaper one
that is there, so that a pending sum, for example, is reduced once and the result is cut up for
all who need pieces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autopar.cost.evaluation import Evaluator
from autopar.cost.reshard.making import Making
from autopar.cost.reshard.planner import ReshardPlanner
from autopar.cost.windows import WindowWay
from autopar.ir.dims import dim_axes
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.layout import Layout
from autopar.ir.program import Lifetime

Group = tuple[WindowWay, ...]
"""Windows through which a value is read, as the ways to make them."""


class Prices:
    """The seconds of what partition may insert.

    Args:
        planner: Plans reshards.
    """

    def __init__(self, planner: ReshardPlanner) -> None:
        self.planner = planner
        self._evaluator = Evaluator.of_ops(planner.model)
        self._windows: dict[tuple[WindowWay, str], float] = {}

    def making(self, dtype: str) -> Making[Layout]:
        """Returns what decides how forms of a type are made."""
        plan, itemsize = self.planner.plan, DTYPE_BYTES[dtype]
        return Making(lambda source, target: plan(source, target, itemsize).seconds)

    def windows(self, way: WindowWay, dtype: str) -> float:
        """Returns the seconds of a way to windows."""
        key = way, dtype
        if key not in self._windows:
            self._windows[key] = way.local_seconds(dtype, self._evaluator)
        return self._windows[key]


@dataclass
class Forms:
    """The forms of one value.

    Attributes:
        dtype: Of its elements.
        stored: The layout in which the value is stored.
        needed: The layouts in which it will be read in each lifetime, each once, in order of
            first use.
        names: Name of each form that exists from when it is made.
        windows: The windows through which it will be read in each lifetime, each group once.
        gathered: Name of each form that exists in a lifetime: those larger than the first one,
            and what loops make of them. A gathered parameter is gathered again for the backward
            pass.
        cut: Name of each group of windows that exists, and of those that do in a lifetime.
        parents: The form that each needed one is made from in a lifetime.
        ways: The way in which each group of windows is made in a lifetime.
    """

    dtype: str
    stored: Layout
    needed: dict[Lifetime, list[Layout]] = field(default_factory=dict)
    windows: dict[Lifetime, list[Group]] = field(default_factory=dict)
    names: dict[Layout, str] = field(default_factory=dict)
    gathered: dict[Lifetime, dict[Layout, str]] = field(default_factory=dict)
    cut: dict[tuple[Lifetime | None, Group], str] = field(default_factory=dict)
    parents: dict[Lifetime, dict[Layout, Layout]] = field(default_factory=dict)
    ways: dict[tuple[Lifetime, Group], WindowWay] = field(default_factory=dict)

    def need(self, layout: Layout, lifetime: Lifetime) -> None:
        """Notes that a layout will be read."""
        needed = self.needed.setdefault(lifetime, [])
        if layout not in needed:
            needed.append(layout)

    def need_windows(self, group: Group, lifetime: Lifetime) -> None:
        """Notes that windows will be read, which can be made in any of these ways."""
        needed = self.windows.setdefault(lifetime, [])
        if group not in needed:
            needed.append(group)

    def add(self, layout: Layout, name: str, lifetime: Lifetime, *, lasts: bool = True) -> None:
        """Notes that a form exists; one that is larger, or that a loop makes, for one lifetime."""
        kept = lasts and not (self.names and self.is_gathered(layout))
        if layout == self.stored or kept:
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

    def cut_in(self, group: Group, lifetime: Lifetime) -> str | None:
        """Returns the name of windows that can be read in a lifetime, if there are any."""
        return self.cut.get((None, group)) or self.cut.get((lifetime, group))

    def add_windows(self, group: Group, name: str, lifetime: Lifetime, *, lasts: bool) -> None:
        """Notes that windows exist. Those of gathered blocks, or in loops, do for one lifetime."""
        lasting = lasts and not self.is_gathered(group[0].layout)
        self.cut[None if lasting else lifetime, group] = name

    def source(self, layout: Layout, lifetime: Lifetime, prices: Prices) -> Layout:
        """Returns the form from which a layout is made; it may have to be made before."""
        self._decide(lifetime, prices)
        parent = self.parents[lifetime].get(layout)
        if parent is not None:
            return parent
        seconds = prices.making(self.dtype).seconds
        return min(self.there(lifetime), key=lambda form: seconds(form, layout))

    def first(self, prices: Prices) -> Layout:
        """Returns the form that is made first, for the first lifetime that reads the value."""
        made = next(iter(self.names))
        for lifetime in self.needed:
            self._decide(lifetime, prices)
            return next(iter(self.parents[lifetime]), made)
        return made

    def way(self, group: Group, lifetime: Lifetime, prices: Prices) -> WindowWay:
        """Returns the way in which windows are made."""
        self._decide(lifetime, prices)
        return self.ways[lifetime, group]

    def _decide(self, lifetime: Lifetime, prices: Prices) -> None:
        """Decides how all that a lifetime reads is made."""
        if lifetime in self.parents:
            return
        there = list(self.there(lifetime))
        groups = [g for g in self.windows.get(lifetime, ()) if not self.cut_in(g, lifetime)]
        made = prices.making(self.dtype).made(
            there,
            self.needed.get(lifetime, ()),
            there[0].without_partial().normalized(),
            [[(way.layout, prices.windows(way, self.dtype)) for way in g] for g in groups],
        )
        self.parents[lifetime] = {layout: source for source, layout in made.steps}
        for group, chosen in zip(groups, made.ways, strict=True):
            self.ways[lifetime, group] = group[chosen]


def _parts(layout: Layout) -> int:
    """Returns into how many different pieces a layout splits a value."""
    return math.prod(layout.mesh.axes_size(dim_axes(dim)) for dim in layout.dims)
