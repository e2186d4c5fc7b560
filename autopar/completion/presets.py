"""Presets: named strategies, as functions that pin along one mesh axis.

They go by structure, not by names: which inputs carry a batch and which operands are weights
follows from the factor rules. What a user annotated is left alone; what an earlier preset pinned
is split further, along the new axis.

    replicate   nothing is split along the axis
    data        the batch of every input
    tensor      weights of matrix products and convolutions, by columns or rows
    fsdp        every parameter along its largest dimension, and the batch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autopar.completion.batch import batch_inputs
from autopar.completion.call import CallTable
from autopar.completion.graph import Graph
from autopar.completion.space import Form, Space, bytes_of
from autopar.completion.splits import Key
from autopar.completion.strategy import AxisPreset, parse_strategy
from autopar.completion.tensor import split_weights
from autopar.cost import Cluster
from autopar.ir.errors import AnnotationError
from autopar.ir.layout import Origin, SubDim, dim_axes
from autopar.ir.program import STORED_ROLES, Program, Value

SMALL_BYTES = 64 * 1024
"""fsdp leaves vectors below this whole: gathering them costs more than they take."""

SMALL_CONSTANT_BYTES = 4 * 1024
"""fsdp leaves constants below this whole: masks and tables, not the weights of a folded model."""


def apply_strategy(program: Program, strategy: str, cluster: Cluster) -> Program:
    """Returns the program with the values pinned that a strategy pins.

    Args:
        program: A serial program with a mesh.
        strategy: Presets with their axes, as `data:0,tensor:1`; "" for the default of the mesh.
        cluster: The hardware whose costs decide between columns and rows.

    Raises:
        AnnotationError: If the program has no mesh, or the strategy doesn't fit it.
    """
    if program.mesh is None:
        raise AnnotationError("the program has no mesh; annotate it with one first")
    space = Space(program.mesh, cluster)
    main = program.main
    graph = Graph(space, CallTable(space), main.ops, main.values, main.outputs)
    pin_strategy(graph, strategy)
    values = dict(main.values)
    for at, origin in graph.origins.items():
        value, form = graph.values[at], graph.pins[at]
        if form is not None:
            values[value.name] = replace(value, dist=form.layout, origin=origin)
    return program.with_main(replace(main, values=values))


def pin_strategy(graph: Graph, strategy: str) -> tuple[AxisPreset, ...]:
    """Pins values of a graph by a strategy, and returns the presets that it consists of."""
    mesh = graph.space.mesh
    chosen = parse_strategy(strategy, mesh) if strategy.strip() else default_strategy(graph)
    # fsdp takes what the others leave: a dimension that it shares with them costs more to gather.
    for item in sorted(chosen, key=lambda item: item.preset == "fsdp"):
        if mesh.axis_size(item.axis) > 1:
            PRESET_FUNCTIONS[item.preset](graph, item.axis)
    return chosen


def default_strategy(graph: Graph) -> tuple[AxisPreset, ...]:
    """Returns what to do where the user says nothing.

    Data over the first axis, tensor over the second. A further axis takes more of the batch where
    that divides evenly over all data axes, else more of the weights. If no input has a batch, all
    axes go to tensor.
    """
    mesh = graph.space.mesh
    batch = min((graph.values[v].global_shape[0] for v in batch_inputs(graph)), default=1)
    chosen: list[AxisPreset] = []
    parts = 1
    for number, axis in enumerate(mesh.dim_names):
        together = parts * mesh.axis_size(axis)
        if batch > 1 and (number == 0 or (number > 1 and batch % together == 0)):
            chosen.append(AxisPreset("data", axis))
            parts = together
        else:
            chosen.append(AxisPreset("tensor", axis))
    return tuple(chosen)


def replicate(graph: Graph, axis: str) -> None:
    """Keeps every input and parameter whole along an axis, and so all that follows from them."""
    for value, producer in enumerate(graph.producer):
        if producer is None and graph.uses[value]:
            form = graph.pins[value] or graph.replicated(value)
            _pin(graph, value, form, AxisPreset("replicate", axis))


def data(graph: Graph, axis: str) -> None:
    """Splits the batch of the inputs. An input without a batch (`batch_inputs`) is left free."""
    _split_batch(graph, axis, AxisPreset("data", axis))


def tensor(graph: Graph, axis: str) -> None:
    """Splits the weights of matrix products and convolutions by columns or rows.

    Which of the two is decided by predicted communication (`split_weights`).
    """
    for value, form in split_weights(graph, axis).items():
        _extend(graph, value, form, AxisPreset("tensor", axis))


def fsdp(graph: Graph, axis: str) -> None:
    """Splits every parameter along its largest dimension that divides evenly, and the batch.

    Dimensions that another preset splits already are taken only where there is no other.

    Where the two meet in an op, predicted cost decides: usually the parameter is gathered. A
    parameter without such a dimension is split unevenly along its largest; small vectors and
    constants stay whole.
    """
    for at, value in enumerate(graph.values):
        if value.role in STORED_ROLES and graph.producer[at] is None:
            form = None if _is_small(value) else _largest_split(graph, at, axis)
            if form is not None:
                _extend(graph, at, form, AxisPreset("fsdp", axis))
    _split_batch(graph, axis, AxisPreset("fsdp", axis))


PRESET_FUNCTIONS: Mapping[str, Callable[[Graph, str], None]] = {
    "replicate": replicate,
    "data": data,
    "tensor": tensor,
    "fsdp": fsdp,
}


def _split_batch(graph: Graph, axis: str, preset: AxisPreset) -> None:
    for value in batch_inputs(graph):
        _extend(graph, value, _split(graph, value, 0, axis), preset)


def _split(graph: Graph, value: int, dim: int, axis: str) -> Form:
    shape = graph.values[value].global_shape
    splits = graph.space.table.of({dim: (SubDim(shape[dim], (axis,)),)})
    return graph.space.of_splits(splits, shape)


def _is_small(value: Value) -> bool:
    nbytes = bytes_of(value)
    if sum(size > 1 for size in value.global_shape) < 2:
        return nbytes < SMALL_BYTES
    return value.role != "parameter" and nbytes < SMALL_CONSTANT_BYTES


def _largest_split(graph: Graph, at: int, axis: str) -> Form | None:
    value = graph.values[at]
    shape, parts = value.global_shape, graph.space.mesh.axis_size(axis)
    pin = graph.pins[at]
    busy = pin.splits.items if pin is not None else {}
    taken = [graph.space.mesh.axes_size(dim_axes(busy.get(d, ()))) for d in range(len(shape))]
    fitting = [d for d, size in enumerate(shape) if size // taken[d] >= parts]
    free = [d for d in fitting if taken[d] == 1] or fitting
    even = [d for d in free if shape[d] % (taken[d] * parts) == 0]
    if not free:
        return None
    return _split(graph, at, max(even or free, key=lambda d: (shape[d], -d)), axis)


def _extend(graph: Graph, value: int, form: Form, preset: AxisPreset) -> None:
    """Splits a value along the preset's axis as `form` has it, besides what is pinned."""
    if value in graph.annotated:
        return
    pin = graph.pins[value]
    splits = graph.space.table.none if pin is None else pin.splits
    if preset.axis in splits.places:
        return
    shape = graph.values[value].global_shape
    at, _ = form.splits.places[preset.axis]
    cuts: dict[Key, Sequence[int]] = {}
    if isinstance(at, int):
        cuts[at] = graph.cuts.sizes(value, at, shape[at])
    merged = graph.space.table.nested(splits, preset.axis, form.splits, cuts)
    if merged is not None:
        _pin(graph, value, graph.space.of_splits(merged, shape), preset)


def _pin(graph: Graph, value: int, form: Form, preset: AxisPreset) -> None:
    if value in graph.annotated:
        return
    earlier = graph.origins.get(value)
    detail = f"{earlier.detail},{preset}" if earlier else str(preset)
    graph.pins[value] = form
    graph.origins[value] = Origin("preset", detail)


__all__: Sequence[str] = (
    "apply_strategy",
    "data",
    "default_strategy",
    "fsdp",
    "pin_strategy",
    "replicate",
    "tensor",
)
