"""The presets that split sequences: `sequence` between the blocks of `tensor`, `context` all along.

Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models* (2022): behind a
tensor-parallel block, activations that every process would hold and normalize alike are split along
the sequence instead. An all_reduce becomes a reduce_scatter, and an all_gather before the next
block; nothing more is moved, and less is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.base.errors import AnnotationError
from autopar.completion.presets.batch import sequences
from autopar.completion.presets.pinning import pin, split_further, split_stretch
from autopar.completion.presets.preset import AxisPreset
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.space import Form
from autopar.completion.propagate.propagation import Propagation
from autopar.ir.dtypes import FLOATS


def context(graph: Graph, along: AxisPreset) -> None:
    """Splits the sequence of the inputs, or of the first activation that has one.

    Raises:
        AnnotationError: If nothing has a sequence in its second dimension.
    """
    axis, forms = along.axis, _sequences(graph, along)
    inside = any(graph.producer[value] is not None for value in forms)
    around = Propagation(graph).forms if inside else graph.pins
    for value, form in forms.items():
        base = around[value] or graph.replicated(value)
        split = (
            None if axis in base.splits.places else split_further(graph, value, base, form, axis)
        )
        if split is not None:
            pin(graph, value, split, along)


def sequence(graph: Graph, along: AxisPreset) -> None:
    """Splits the sequence of activations that weights split along the same axis leave whole.

    What these weights split is settled: ops are computed where their weights lie, though gathering
    a small weight may be cheaper.

    Raises:
        AnnotationError: If nothing has a sequence, or no weight is split along the axis.
    """
    axis, begins = along.axis, _sequences(graph, along)
    if not any(
        form is not None and axis in form.splits.places and graph.steady[value]
        for value, form in enumerate(graph.pins)
    ):
        raise AnnotationError(
            f"strategy {along}: no weight is split along {axis}; add tensor:{axis}, or write"
            f" context:{axis} to split sequences without weights"
        )
    places = _places(graph, begins)
    blocks = Propagation(graph)
    activations = _activations(graph)
    for node, choice in zip(graph.nodes, blocks.choices, strict=True):
        if axis in choice.splits.places:
            graph.settle(node, axis, choice.splits)
        elif node.op.phase == "forward":
            results = [value for value in node.results if value in activations]
            _split_results(graph, results, blocks.forms, places, along)


def _activations(graph: Graph) -> frozenset[int]:
    """Returns what depends on both the inputs and a parameter.

    What doesn't, as a mask, is as long as a sequence too, but read whole within blocks.
    """
    activations = {number for number, value in enumerate(graph.values) if value.role == "parameter"}
    for node in graph.nodes:
        if not activations.isdisjoint(node.operands):
            activations.update(node.results)
    return frozenset(value for value in activations if not graph.steady[value])


def _split_results(
    graph: Graph,
    results: Sequence[int],
    whole: Sequence[Form],
    places: Sequence[Form],
    preset: AxisPreset,
) -> None:
    """Splits the sequence of what an op between the blocks leaves."""
    axis, table = preset.axis, graph.space.table
    for value in results:
        known = graph.values[value]
        is_free = graph.pins[value] is None and axis not in whole[value].splits.places
        if not is_free or known.dtype not in FLOATS or axis not in places[value].splits.places:
            continue
        splits = table.merged(whole[value].splits, axis, places[value].splits)
        if splits is not None:
            pin(graph, value, graph.space.of_splits(splits, known.global_shape), preset)


def _sequences(graph: Graph, preset: AxisPreset) -> dict[int, Form]:
    """Returns the form of each value at which sequences begin, with the sequence split."""
    forms = {
        value: split_stretch(graph, value, stretch, preset.axis)
        for value, stretch in sequences(graph).items()
    }
    if not forms:
        raise AnnotationError(
            f"strategy {preset}: nothing has a sequence in its second dimension to split"
        )
    return forms


def _places(graph: Graph, begins: dict[int, Form]) -> list[Form]:
    """Returns where the sequence is in every value: how it would spread if nothing else did."""
    pins = graph.pins
    graph.pins = [begins.get(value) for value in range(len(pins))]
    propagated = Propagation(graph)
    graph.pins = pins
    return propagated.forms
