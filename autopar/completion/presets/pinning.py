"""Pinning: how presets pin values, each along its own mesh axis.

What a user annotated is left alone; what an earlier preset pinned is split further.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.completion.presets.batch import batch_inputs
from autopar.completion.presets.marks import Stretch
from autopar.completion.presets.preset import AxisPreset
from autopar.completion.problem.cuts import Cuts
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.space import Form
from autopar.completion.problem.splits import Key
from autopar.ir.dims import SubDim, normalize_dim
from autopar.ir.expr.expression import IntExpr
from autopar.ir.layout import Origin


def split_along(graph: Graph, value: int, dim: int, axis: str) -> Form:
    """Returns the form of a value that an axis splits in one dimension."""
    return split_stretch(graph, value, Stretch(dim, 1, graph.values[value].global_shape[dim]), axis)


def split_further(graph: Graph, value: int, base: Form, form: Form, axis: str) -> Form | None:
    """Returns a form of a value split along one more axis, as another form is; None if it can't."""
    shape = graph.values[value].global_shape
    dim, _ = form.splits.places[axis]
    cuts: dict[Key, Sequence[IntExpr]] = {}
    if isinstance(dim, int):
        cuts[dim] = graph.shared(Cuts).sizes(value, dim, shape[dim])
    merged = graph.space.table.nested(base.splits, axis, form.splits, cuts)
    return None if merged is None else graph.space.of_splits(merged, shape)


def keep_whole(graph: Graph, preset: AxisPreset) -> None:
    """Keeps every input and parameter whole along an axis, and so all that follows from them."""
    for value, producer in enumerate(graph.producer):
        if producer is None and graph.uses[value]:
            pin(graph, value, graph.pins[value] or graph.replicated(value), preset)


def split_batch(graph: Graph, preset: AxisPreset) -> None:
    """Splits the batch of every input that has one (`batch_inputs`); of microbatches each.

    An input without a batch is left free.
    """
    for value, stretch in batch_inputs(graph).items():
        extend(graph, value, split_stretch(graph, value, stretch, preset.axis), preset)


def split_stretch(graph: Graph, value: int, stretch: Stretch, axis: str) -> Form:
    """Returns the form of a value of which an axis splits a part of a dimension."""
    shape = graph.values[value].global_shape
    outer = shape[stretch.dim] // (stretch.size * stretch.inner)
    subs = (SubDim(outer), SubDim(stretch.size, (axis,)), SubDim(stretch.inner))
    splits = graph.space.table.splits_of({stretch.dim: normalize_dim(subs, graph.space.mesh)})
    return graph.space.of_splits(splits, shape)


def extend(graph: Graph, value: int, form: Form, preset: AxisPreset) -> None:
    """Splits a value along the preset's axis as `form` has it, besides what is pinned."""
    base = graph.pins[value] or graph.replicated(value)
    if value in graph.fixed or preset.axis in base.splits.places:
        return
    merged = split_further(graph, value, base, form, preset.axis)
    if merged is not None:
        pin(graph, value, merged, preset)


def pin(graph: Graph, value: int, form: Form, preset: AxisPreset) -> None:
    """Pins a value, unless it lies where it must."""
    if value in graph.fixed:
        return
    earlier = graph.origins.get(value)
    detail = f"{earlier.detail},{preset}" if earlier else str(preset)
    graph.pins[value] = form
    graph.origins[value] = Origin("preset", detail)
