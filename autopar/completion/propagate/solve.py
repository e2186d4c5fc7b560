"""Solve: the choice of every op and the form of every value of a graph."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.base.errors import AnnotationError
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.price import Price
from autopar.completion.problem.space import Form
from autopar.completion.propagate.deferred_reductions import defer_reductions
from autopar.completion.propagate.local_search import GAIN, LocalSearch, stored_form
from autopar.completion.propagate.propagation import Propagation
from autopar.completion.propagate.reduce_before_scatter import reduce_before_scatter
from autopar.ir.layout import Origin

SHARES_STORAGE = "shares storage with"
"""In the origin of what has no layout of its own, since it is the new content of something."""


@dataclass(frozen=True)
class Solution:
    """What completion decided about a graph, and why.

    Attributes:
        graph: The graph.
        choices: Per op.
        forms: Per value, how it is stored.
        op_source: Per op, the value from which the split along each axis came.
        value_source: Per value, the op from which the split along each axis came.
        chosen: Ops whose choice was changed by predicted cost.
    """

    graph: Graph
    choices: list[Choice]
    forms: list[Form]
    op_source: list[dict[str, int]]
    value_source: list[dict[str, int]]
    chosen: frozenset[int]

    @property
    def seconds(self) -> float:
        """Predicted seconds of all ops and reshards."""
        return Price(self.graph).total(self.choices, self.forms)


def solve(graph: Graph) -> Solution:
    """Completes a graph.

    Where the user's own pins compete for an axis, both ways to spread them are tried, and the
    cheaper outcome is taken.

    Args:
        graph: With pins.

    Raises:
        AnnotationError: If both of an aliased pair are pinned, differently.
    """
    pin_aliases(graph)
    propagation = Propagation(graph)
    begun = list(propagation.choices)
    first = _searched(graph, propagation)
    if not _pins_compete(graph):
        return first
    other = Propagation(graph, together=True)
    if other.choices == begun and other.forms == propagation.forms:
        return first
    second = _searched(graph, other)
    return second if second.seconds < first.seconds * (1 - GAIN) else first


def _pins_compete(graph: Graph) -> bool:
    """Whether the user split both parameters and what changes between calls along one axis."""
    axes: tuple[set[str], set[str]] = (set(), set())
    for value in graph.annotated:
        pin = graph.pins[value]
        if pin is not None:
            axes[graph.steady[value]].update(pin.splits.places)
    return not axes[0].isdisjoint(axes[1])


def _searched(graph: Graph, propagation: Propagation) -> Solution:
    """Returns what becomes of pins as they spread; the choices are changed in place."""
    pins = list(graph.pins)
    _pin_free_aliases(graph, propagation.forms)
    search = LocalSearch(graph, propagation.choices)
    search.changed.update(reduce_before_scatter(graph, search.choices))
    defer_reductions(graph, search.choices)
    forms = [
        stored_form(graph, search.choices, value) or _input_form(graph, search.choices, value)
        for value in range(len(graph.values))
    ]
    graph.pins = pins
    return Solution(
        graph,
        search.choices,
        forms,
        propagation.op_source,
        propagation.value_source,
        frozenset(search.changed),
    )


def _input_form(graph: Graph, choices: list[Choice], value: int) -> Form:
    """Returns the form of a free input: split as all its readers want it, so none communicates."""
    space = graph.space
    demands = [
        space.complete(choices[node.index].consumed[position])
        for node, position in graph.uses[value]
    ]
    if not demands:
        return graph.replicated(value)
    splits = demands[0].splits
    for form in demands[1:]:
        for axis, place in list(splits.places.items()):
            if form.splits.places.get(axis) != place:
                splits = space.table.without(splits, axis)
    return space.of_splits(splits, graph.values[value].global_shape)


def pin_aliases(graph: Graph) -> None:
    """Pins the new content of what is pinned likewise, and the other way round.

    Raises:
        AnnotationError: If both are pinned, differently.
    """
    for out, into in graph.aliases:
        pins = graph.pins[out], graph.pins[into]
        if pins[0] and pins[1] and pins[0] is not graph.like(out, into, pins[1]):
            a, b = graph.values[out], graph.values[into]
            raise AnnotationError(
                f"%{a.name} is the new content of %{b.name}, but their pins differ: {a.dist}"
                f" ({a.origin}) and {b.dist} ({b.origin}); pin one of them, or both alike"
            )
        for value, other, pin in ((out, into, pins[1]), (into, out, pins[0])):
            if graph.pins[value] is None and pin is not None:
                _pin_like(graph, value, other, pin)


def _pin_like(graph: Graph, value: int, other: int, form: Form) -> None:
    graph.pins[value] = graph.like(value, other, form)
    graph.origins[value] = Origin("preset", f"{SHARES_STORAGE} %{graph.values[other].name}")


def _pin_free_aliases(graph: Graph, forms: list[Form]) -> None:
    for out, into in graph.aliases:
        if graph.pins[out] is None:
            _pin_like(graph, into, out, forms[into])
            _pin_like(graph, out, into, forms[into])
