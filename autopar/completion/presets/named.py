"""Pins a program by a strategy: by its presets, each along its mesh axis."""

from __future__ import annotations

from dataclasses import replace

from autopar.base.errors import AnnotationError
from autopar.completion.presets.batch import batch_inputs
from autopar.completion.presets.pinning import split_batch
from autopar.completion.presets.preset import AxisPreset
from autopar.completion.presets.settle import settle_batch
from autopar.completion.presets.strategy import parse_strategy
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.space import Space
from autopar.completion.propagate.bodies import calls_on
from autopar.cost import Cluster
from autopar.ir.program import Program


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
    for number, origin in graph.origins.items():
        value, form = graph.values[number], graph.pins[number]
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
        if item.preset.keeps:
            split_batch(graph, item)
    # Some need to know what others pin: sequences the batch and the weights that are split, and the
    # last ones take what is left, as a dimension that they share costs more to gather.
    for item in sorted(active, key=lambda item: item.preset.turn):
        try:
            item.preset.pin(graph, item)
        except AnnotationError as error:
            if unfit is None:
                raise
            unfit[item] = error
    settle_batch(graph, [item.axis for item in active if item.preset.splits_batch])
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
        if item.preset.splits_batch and mesh.axis_size(item.axis) > 1 and item.axis not in split
    )
