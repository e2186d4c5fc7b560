"""Totals: what denominators of the loss are, of all microbatches, ahead of their passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.step.graph import START, Step
from autopar.frontend.torch.step.inputs import Inputs
from autopar.frontend.torch.step.microbatches import Microbatches

aten = torch.ops.aten


def totals_of(
    step: Step, joints: Sequence[Joint], inputs: Inputs, microbatches: Microbatches
) -> list[fx.Node]:
    """Adds, for each denominator of the loss, that of the whole batch.

    Args:
        step: The step to which they are added.
        joints: The captured passes of each microbatch.
        inputs: The step's inputs.
        microbatches: How the batch is cut.
    """
    found = []
    for denominators in zip(*(joint.denominators for joint in joints), strict=True):
        total: fx.Node | None = None
        for number, (joint, each) in enumerate(zip(joints, denominators, strict=True)):
            given = {
                own: _source(step, joint, inputs, microbatches, number, node)
                for own, node in each.sources.items()
            }
            part = step.copy(each.graph, given, START)[each.result]
            total = part if total is None else step.call(START, aten.add.Tensor, total, part)
        assert total is not None
        for op in denominators[0].then:
            given = dict.fromkeys(op.all_input_nodes, total)
            args, kwargs = fx.node.map_arg((op.args, op.kwargs), given.__getitem__)
            total = step.call(START, op.target, *args, **kwargs)
        found.append(total)
    return found


def _source(
    step: Step,
    joint: Joint,
    inputs: Inputs,
    microbatches: Microbatches,
    number: int,
    node: fx.Node,
) -> fx.Node:
    """Returns the counterpart of what a microbatch reads, ahead of its turn."""
    if node in joint.stored:
        return inputs.read[joint.stored[node]]
    if node not in joint.batch:
        return inputs.constants[node]
    position = joint.batch[node]
    begin, end = [*microbatches.ranges(number)][position]
    return step.call(START, aten.slice.Tensor, inputs.batch[position], 0, begin, end)
