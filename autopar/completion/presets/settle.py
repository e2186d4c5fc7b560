"""Settle: what data-parallel processes compute is settled, however small the batch is.

Gathering a small batch may be predicted to take less time than reducing a gradient. But whoever
asks for data parallelism is to get it: every op that the batch reaches is computed for a part of
the batch, so that gradients are reduced and activations stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.completion.presets.batch import batch_inputs, passed_on
from autopar.completion.presets.marks import Stretch
from autopar.completion.presets.pinning import split_further, split_stretch
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.space import Form
from autopar.completion.propagate.propagation import Propagation


def settle_batch(graph: Graph, axes: Sequence[str]) -> None:
    """Settles how ops that the batch reaches are split along axes that split the batch.

    An axis along which the user pinned something else decides by cost, as without presets.
    """
    pins = _batch_pins(graph, axes)
    key = settle_batch, *pins.items(), frozenset(graph.kept.items())
    alone = graph.once(key, lambda: _batch_alone(graph, pins))
    free = [axis for axis in axes if not _is_contested(graph, axis, alone.forms)]
    for node, choice in zip(graph.nodes, alone.choices, strict=True):
        if node.op.phase != "update":
            for axis in free:
                if axis in choice.splits.places:
                    graph.settle(node, axis, choice.splits)


def _batch_pins(graph: Graph, axes: Sequence[str]) -> dict[int, Form]:
    """Returns how the batch is split along axes, by input and where it is passed on."""
    inputs = ((value, graph.pins[value]) for value in batch_inputs(graph))
    forms = {value: _along(graph, value, pin, axes) for value, pin in inputs if pin is not None}
    for value, passed in passed_on(graph).items():
        form = forms.get(passed.source)
        if form is not None:
            forms[value] = _passed(graph, value, passed.stretch, form)
    return forms


def _passed(graph: Graph, value: int, stretch: Stretch, source: Form) -> Form:
    """Returns the form in which a batch goes on, by that of the input that it is the batch of."""
    form = graph.replicated(value)
    for sub in (sub for dim in source.splits.items.values() for sub in dim):
        for axis in sub.axes:
            further = split_stretch(graph, value, stretch, axis)
            form = split_further(graph, value, form, further, axis) or form
    return form


def _batch_alone(graph: Graph, pins: Mapping[int, Form]) -> Propagation:
    """Returns how the batch would spread if nothing else were split."""
    alone = graph.anew()
    alone.pins, alone.settled = [pins.get(value) for value in range(len(graph.pins))], {}
    return Propagation(alone, anyway=True)


def _along(graph: Graph, value: int, form: Form, axes: Sequence[str]) -> Form:
    splits = form.splits
    for axis in tuple(splits.places):
        if axis not in axes:
            splits = graph.space.table.without(splits, axis)
    return graph.space.of_splits(splits, graph.values[value].global_shape)


def _is_contested(graph: Graph, axis: str, batch: Sequence[Form]) -> bool:
    """Whether the user split something along an axis that isn't the batch."""
    for value in graph.annotated:
        pin = graph.pins[value]
        place = pin.splits.places.get(axis) if pin is not None else None
        if place is not None and batch[value].splits.places.get(axis) != place:
            return True
    return False
