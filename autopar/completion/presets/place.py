"""Place: where within its dimension a pinned parameter is split.

A pin says that an axis splits a dimension. Of a parameter the program owns the storage, and each
rank reads its slices, whichever they are; so where the program takes that dimension apart, as a
fused projection into query, key and value of 12 heads, the split may go between those parts:
`(3)(12@tp)(64)` instead of `2304@tp`. The public dims_mapping is the same. Which of the parts it
is, or none, is decided by predicted communication, as for the `tensor` preset.

Parameters that aren't contracted (biases) follow what their readers then want.
"""

from __future__ import annotations

from autopar.completion.presets.tensor import place_weights
from autopar.completion.problem.cuts import Cuts
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.space import Form
from autopar.completion.propagate.propagation import Propagation
from autopar.ir.program import STORED_ROLES


def place_pins(graph: Graph) -> None:
    """Changes the pins of a graph's parameters to the sub-dimensions where they split best."""
    movable = {axis: _movable(graph, axis) for axis in graph.space.axes}
    placed: dict[int, Form] = {}
    for axis, values in movable.items():
        if any(_has_cuts(graph, value, axis) for value in values):
            placed |= {
                value: form
                for value, form in _placed(graph, axis, values).items()
                if form is not graph.pins[value]
            }
    if placed:
        graph.place(placed)
        _place_followers(graph, frozenset().union(*movable.values()) - placed.keys())


def _movable(graph: Graph, axis: str) -> frozenset[int]:
    """Returns the parameters that the user split along an axis, alone in its dimension."""
    movable = set()
    for value in graph.annotated:
        pin = graph.pins[value]
        if pin is None or graph.producer[value] is not None or value in graph.outputs:
            continue
        if graph.values[value].role not in STORED_ROLES or axis not in pin.splits.places:
            continue
        dim = pin.splits.items[pin.splits.places[axis][0]]
        if len(dim) == 1 and dim[0].axes == (axis,):
            movable.add(value)
    return frozenset(movable)


def _has_cuts(graph: Graph, value: int, axis: str) -> bool:
    pin = graph.pins[value]
    if pin is None:
        return False
    dim = int(pin.splits.places[axis][0])
    return len(graph.shared(Cuts).sizes(value, dim, graph.values[value].global_shape[dim])) > 1


def _placed(graph: Graph, axis: str, values: frozenset[int]) -> dict[int, Form]:
    """Returns the pins with an axis where `place_weights` has it."""
    placed: dict[int, Form] = {}
    for value, form in place_weights(graph, axis, values).items():
        pin = graph.pins[value]
        if pin is not None:
            dim = int(form.splits.places[axis][0])
            items = {**pin.splits.items, dim: form.splits.items[dim]}
            shape = graph.values[value].global_shape
            placed[value] = graph.space.of_splits(graph.space.table.splits_of(items), shape)
    return placed


def _place_followers(graph: Graph, values: frozenset[int]) -> None:
    """Places the other pinned parameters where they would be split if they weren't pinned.

    The weights decide alone, as what changes between calls may want their axis elsewhere.
    """
    pins = list(graph.pins)
    for value, steady in enumerate(graph.steady):
        if not steady or value in values:
            graph.pins[value] = None
    free = Propagation(graph)
    graph.pins = pins
    graph.place(
        {
            value: free.forms[value]
            for value in sorted(values)
            if (pin := pins[value]) is not None
            and free.forms[value].layout.dims_mapping == pin.layout.dims_mapping
        }
    )
