"""Totals: what denominators of the loss are, of all microbatches, ahead of their passes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from autopar.frontend.torch.step.graph import START, Step
from autopar.frontend.torch.step.inputs import Inputs
from autopar.frontend.torch.step.microbatches import Microbatches
from autopar.frontend.torch.step.passes import Pass, total_of


def totals_of(
    step: Step, passes: Sequence[Pass], inputs: Inputs, microbatches: Microbatches
) -> list[fx.Node]:
    """Adds, for each denominator of the loss, that of the whole batch.

    Args:
        step: The step to which they are added.
        passes: The passes of the microbatches.
        inputs: The step's inputs.
        microbatches: How the batch is cut.
    """
    found = []
    for denominators in zip(*(each.joint.denominators for each in passes), strict=True):
        parts = []
        for each, denominator in zip(passes, denominators, strict=True):
            given = {
                own: _source(step, each, inputs, microbatches, node)
                for own, node in denominator.sources.items()
            }
            place = START._replace(times=each.times)
            parts.append(step.copy(denominator.graph, given, place)[denominator.result])
        total = total_of(step, [each._replace(number=0) for each in passes], parts, "forward")
        for op in denominators[0].then:
            given = dict.fromkeys(op.all_input_nodes, total)
            args, kwargs = fx.node.map_arg((op.args, op.kwargs), given.__getitem__)
            total = step.call(START, op.target, *args, **kwargs)
        found.append(total)
    return found


def _source(
    step: Step, each: Pass, inputs: Inputs, microbatches: Microbatches, node: fx.Node
) -> fx.Node:
    """Returns the counterpart of what a microbatch reads, ahead of its turn."""
    joint = each.joint
    if node in joint.stored:
        return inputs.read[joint.stored[node]]
    if node not in joint.batch:
        return inputs.constants[node]
    position = joint.batch[node]
    return each.rows_of(step, inputs.batch, microbatches, START)[position]
