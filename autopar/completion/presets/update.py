"""Update: what belongs to a parameter in a training step.

Aliases say which output is the new content of which parameter. Behind it lie elementwise ops of
phase `update`; what these read of the parameter's shape is its gradient, where another phase
computes it, and the state that the optimizer keeps for it, where it is an input. No name is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.completion.problem.graph import Graph


@dataclass(frozen=True, slots=True)
class Update:
    """The values around a parameter's update.

    Attributes:
        parameter: The parameter, an input.
        gradients: What the backward pass leaves for it.
        states: The optimizer's state of the parameter's shape, inputs.
    """

    parameter: int
    gradients: tuple[int, ...]
    states: tuple[int, ...]


def updates(graph: Graph) -> Sequence[Update]:
    """Returns the updates of a graph's parameters, in the order of its aliases."""
    return graph.once(updates, lambda: _updates(graph))


def _updates(graph: Graph) -> list[Update]:
    updates = []
    for output, source in graph.aliases:
        if graph.values[source].role == "parameter":
            gradients, states = _behind(graph, output, source)
            updates.append(Update(source, gradients, states))
    return updates


def _behind(graph: Graph, output: int, parameter: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the gradients and states of which a parameter's new content is made."""
    shape = graph.values[parameter].shape
    gradients: list[int] = []
    states: list[int] = []
    seen = {output, parameter}
    queue = [output]
    while queue:
        value = queue.pop(0)
        producer = graph.producer[value]
        if producer is None:
            if graph.values[value].role == "optimizer_state":
                states.append(value)
        elif producer[0].op.phase != "update":
            gradients.append(value)
        else:
            near = [v for v in producer[0].operands if graph.values[v].shape == shape]
            queue.extend(v for v in dict.fromkeys(near) if v not in seen)
            seen.update(near)
    return _sorted(gradients), _sorted(states)


def _sorted(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(values))
