"""Naming: what a plan does along each mesh axis, in the words of presets.

A searched plan is a list of splits. What most of its products split is what a user would call it:
the batch, the sequence, or the weights; and how parameters and the optimizer's state are stored
says which stage of ZeRO it is.
"""

from __future__ import annotations

from autopar.completion.graph import Node
from autopar.completion.presets.batch import batch_inputs
from autopar.completion.solve import Solution
from autopar.completion.space import bytes_of

MOST = 0.5
"""The part that has to be split for a plan to be called after it."""


def named(solution: Solution) -> str:
    """Returns what a plan does along each axis, as `dp: data+zero1, tp: tensor`."""
    space = solution.graph.space
    return ", ".join(f"{axis}: {_along(solution, axis)}" for axis in space.axes)


def _along(solution: Solution, axis: str) -> str:
    graph = solution.graph
    seconds: dict[str, float] = {}
    for node in graph.nodes:
        if node.weights:
            choice = solution.choices[node.index]
            parts = graph.space.mesh.axes_size(tuple(choice.splits.places))
            # In seconds of the whole product: a part that is split takes less.
            word = _of_product(solution, node, axis)
            seconds[word] = seconds.get(word, 0.0) + choice.seconds * parts
    if not seconds:
        return (
            "activations" if any(axis in c.splits.places for c in solution.choices) else "nothing"
        )
    word = max(seconds, key=seconds.__getitem__)
    if word == "moving":
        word = "data" if _splits_batch(solution, axis) else "context"
    stage = _stage(solution, axis) if word in ("data", "context") else ""
    return f"{word}+{stage}" if stage else word


def _of_product(solution: Solution, node: Node, axis: str) -> str:
    """Returns what an axis splits of a product with a weight."""
    places = solution.choices[node.index].splits.places
    if axis not in places:
        return "nothing"
    factor = places[axis][0]
    dims = [node.call.rule.operands[at] for at in node.weights]
    of_weight = any(factor in factors for tensor in dims for factors in tensor)
    return "tensor" if of_weight else "moving"


def _splits_batch(solution: Solution, axis: str) -> bool:
    """Whether an axis splits the batch of the inputs, where most of their readers take it up."""
    graph = solution.graph
    found = []
    for value, stretch in batch_inputs(graph).items():
        for node, at in graph.uses[value]:
            place = solution.choices[node.index].consumed[at].splits.places.get(axis)
            found.append(place is not None and place[0] == stretch.dim)
    return sum(found) > MOST * len(found)


def _stage(solution: Solution, axis: str) -> str:
    if _stored_part(solution, axis, "parameter") > MOST:
        return "fsdp"
    return "zero1" if _stored_part(solution, axis, "optimizer_state") > MOST else ""


def _stored_part(solution: Solution, axis: str, role: str) -> float:
    """Returns the part of the bytes in a role that is only stored split along an axis."""
    graph = solution.graph
    total = split = 0
    for at, value in enumerate(graph.values):
        if value.role == role and graph.producer[at] is None:
            total += bytes_of(value)
            split += bytes_of(value) * _is_only_stored(solution, at, axis)
    return split / total if total else 0.0


def _is_only_stored(solution: Solution, value: int, axis: str) -> bool:
    """Whether a value is split along an axis where it lies, but not where the model reads it."""
    if axis not in solution.forms[value].splits.places:
        return False
    return not any(
        axis in solution.choices[node.index].consumed[at].splits.places
        for node, at in solution.graph.uses[value]
        if node.op.phase != "update"
    )
