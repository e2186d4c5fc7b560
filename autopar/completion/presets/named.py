"""Presets: named strategies, as functions that pin along one mesh axis.

They go by structure, not by names: which inputs carry a batch and which operands are weights
follows from the factor rules. What a user annotated is left alone; what an earlier preset pinned
is split further, along the new axis.

    replicate   nothing is split along the axis
    data        the batch of every input (also called ddp)
    tensor      weights of matrix products and convolutions, by columns or rows
    expert      the experts of batched weights
    sequence    with tensor: the sequence of what lies between its blocks
    context     the sequence of every input, or of the first activation that has one
    zero1       the batch; the optimizer's state along its largest dimension
    zero2       the batch; the gradients too
    fsdp        the batch; the parameters too (also called zero3)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autopar.base.errors import AnnotationError
from autopar.completion.presets.batch import batch_inputs
from autopar.completion.presets.expert import expert
from autopar.completion.presets.pinning import extend, pin, split_batch
from autopar.completion.presets.sequence import context, sequence
from autopar.completion.presets.settle import settle_batch
from autopar.completion.presets.strategy import AxisPreset, parse_strategy
from autopar.completion.presets.tensor import split_weights
from autopar.completion.presets.zero import fsdp, zero1, zero2
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.space import Space
from autopar.completion.propagate.bodies import calls_on
from autopar.cost import Cluster
from autopar.ir.program import Program

KEPT_SPLIT = ("zero1", "zero2", "fsdp")
"""Presets of data-parallel processes that split what they keep."""

LATE = {"context": 1, "sequence": 2, **dict.fromkeys(KEPT_SPLIT, 3)}
"""Presets that come after the others."""


def apply_strategy(program: Program, strategy: str, cluster: Cluster) -> Program:
    """Returns the program with the values pinned that a strategy pins.

    Args:
        program: A serial program with a mesh.
        strategy: Presets with their axes, as `data:0,tensor:1`.
        cluster: The hardware whose costs decide between columns and rows.

    Raises:
        AnnotationError: If the program has no mesh, or the strategy doesn't fit it.
    """
    if program.mesh is None:
        raise AnnotationError("the program has no mesh; annotate it with one first")
    space = Space(program.mesh, cluster)
    main = program.main
    graph = Graph(space, calls_on(space), main.ops, main.values, main.outputs, main.aliases)
    pin_strategy(graph, strategy)
    values = dict(main.values)
    for at, origin in graph.origins.items():
        value, form = graph.values[at], graph.pins[at]
        if form is not None:
            values[value.name] = replace(value, dist=form.layout, origin=origin)
    return program.with_main(replace(main, values=values))


Unfit = dict[AxisPreset, AnnotationError]
"""Presets that find nothing to pin, with what they say of it."""


def pin_strategy(graph: Graph, strategy: str, unfit: Unfit | None = None) -> tuple[AxisPreset, ...]:
    """Pins values of a graph by a strategy, and returns the presets that it consists of.

    On a slice of a mesh, those along axes that the slice has.

    Args:
        graph: The graph.
        strategy: The presets.
        unfit: Gets the presets that find nothing to pin; without it, they are errors.

    Raises:
        AnnotationError: If the strategy doesn't fit the mesh or the graph.
    """
    mesh = graph.space.mesh
    named = parse_strategy(strategy, mesh.root)
    chosen = tuple(item for item in named if item.axis in mesh.dim_names)
    active = [item for item in chosen if mesh.axis_size(item.axis) > 1]
    for item in active:
        if item.preset in KEPT_SPLIT:
            split_batch(graph, item)
    # Some need to know what others pin: sequences the batch and the weights that are split, and the
    # last ones take what is left, as a dimension that they share costs more to gather.
    for item in sorted(active, key=lambda item: LATE.get(item.preset, 0)):
        try:
            PRESET_FUNCTIONS[item.preset](graph, item.axis)
        except AnnotationError as error:
            if unfit is None:
                raise
            unfit[item] = error
    settle_batch(graph, [item.axis for item in active if item.preset in ("data", *KEPT_SPLIT)])
    return chosen


def without_batch(graph: Graph, strategy: str) -> tuple[AxisPreset, ...]:
    """Returns the presets of a strategy that would split a batch, and split no input.

    Args:
        graph: The graph, with what the strategy pins.
        strategy: The presets.
    """
    mesh = graph.space.mesh
    split = {
        axis
        for value, stretch in batch_inputs(graph).items()
        if (form := graph.pins[value]) is not None
        for axis, (dim, _) in form.splits.places.items()
        if dim == stretch.dim
    }
    return tuple(
        item
        for item in parse_strategy(strategy, mesh.root)
        if item.preset in ("data", *KEPT_SPLIT)
        and mesh.axis_size(item.axis) > 1
        and item.axis not in split
    )


def replicate(graph: Graph, axis: str) -> None:
    """Keeps every input and parameter whole along an axis, and so all that follows from them."""
    for value, producer in enumerate(graph.producer):
        if producer is None and graph.uses[value]:
            form = graph.pins[value] or graph.replicated(value)
            pin(graph, value, form, AxisPreset("replicate", axis))


def data(graph: Graph, axis: str) -> None:
    """Splits the batch of the inputs. An input without a batch (`batch_inputs`) is left free."""
    split_batch(graph, AxisPreset("data", axis))


def tensor(graph: Graph, axis: str) -> None:
    """Splits the weights of matrix products and convolutions by columns or rows.

    Which of the two is decided by predicted communication (`split_weights`).
    """
    for value, form in split_weights(graph, axis).items():
        extend(graph, value, form, AxisPreset("tensor", axis))


PRESET_FUNCTIONS: Mapping[str, Callable[[Graph, str], None]] = {
    "replicate": replicate,
    "data": data,
    "tensor": tensor,
    "expert": expert,
    "sequence": sequence,
    "context": context,
    "zero1": zero1,
    "zero2": zero2,
    "fsdp": fsdp,
}


__all__: Sequence[str] = (
    "apply_strategy",
    "data",
    "pin_strategy",
    "replicate",
    "tensor",
)
