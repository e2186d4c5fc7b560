"""Naming: what a plan does along each mesh axis, in the words of presets.

A searched plan is a list of splits. What most of its products split is what a user would call it:
the batch, the sequence, or the weights; and how parameters and the optimizer's state are stored
says which stage of ZeRO it is.
"""

from __future__ import annotations

from autopar.completion.presets.batch import batch_inputs
from autopar.completion.presets.preset import Product
from autopar.completion.presets.table import KEEPING, preset_of
from autopar.completion.problem.graph import Node
from autopar.completion.problem.space import bytes_of
from autopar.completion.propagate.solve import Solution
from autopar.ir.program import STORED_ROLES

MOST = 0.5
"""The part that has to be split for a plan to be called after it."""


def named(solution: Solution) -> str:
    """Returns what a plan does along each axis, as `dp: data+zero1, tp: tensor`."""
    space = solution.graph.space
    return ", ".join(f"{axis}: {_along(solution, axis)}" for axis in space.axes)


def _along(solution: Solution, axis: str) -> str:
    graph = solution.graph
    seconds: dict[Product, float] = {}
    has_batch = bool(batch_inputs(graph))
    for node in graph.nodes:
        if node.weights:
            choice = solution.choices[node.index]
            parts = graph.space.mesh.axes_size(tuple(choice.splits.places))
            # In seconds of the whole product: a part that is split takes less.
            part = _of_product(solution, node, axis, has_batch=has_batch)
            seconds[part] = seconds.get(part, 0.0) + choice.seconds * parts
    most: Product = max(seconds, key=seconds.__getitem__, default="nothing")
    if most == "nothing" and any(axis in c.splits.places for c in solution.choices):
        return "mixed" if seconds else "activations"
    stage = _stage(solution, axis) if most in ("batch", "sequence") else ""
    return f"{preset_of(most)}+{stage}" if stage else preset_of(most).name


def _of_product(solution: Solution, node: Node, axis: str, *, has_batch: bool) -> Product:
    """Returns what an axis splits of a product with a weight."""
    splits = solution.choices[node.index].splits
    if axis not in splits.places:
        return "nothing"
    factor = splits.places[axis][0]
    operands = node.call.rule.operands
    if any(factor in factors for position in node.weights for factors in operands[position]):
        return "weight"
    # Of what isn't a weight, the batch comes first, also within a dimension that was flattened.
    moving = [operand for position, operand in enumerate(operands) if position not in node.weights]
    is_first = any(operand and factor in operand[0][:1] for operand in moving)
    leads = axis in splits.items[factor][0].axes
    return "batch" if has_batch and is_first and leads else "sequence"


def _stage(solution: Solution, axis: str) -> str:
    """Returns the preset that keeps split what is only stored split; "" if nothing much is."""
    for preset in KEEPING:
        role = preset.keeps[-1]
        if role in STORED_ROLES and _stored_part(solution, axis, role) > MOST:
            return preset.name
    return ""


def _stored_part(solution: Solution, axis: str, role: str) -> float:
    """Returns the part of the bytes in a role that is only stored split along an axis."""
    graph = solution.graph
    total = split = 0
    for number, value in enumerate(graph.values):
        if value.role == role and graph.producer[number] is None:
            total += bytes_of(value)
            split += bytes_of(value) * _is_only_stored(solution, number, axis)
    return split / total if total else 0.0


def _is_only_stored(solution: Solution, value: int, axis: str) -> bool:
    """Whether a value is split along an axis where it lies, but not where the model reads it."""
    if axis not in solution.forms[value].splits.places:
        return False
    return not any(
        axis in solution.choices[node.index].consumed[position].splits.places
        for node, position in solution.graph.uses[value]
        if node.op.phase != "update"
    )
