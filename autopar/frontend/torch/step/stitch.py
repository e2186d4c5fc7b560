"""Puts captured graphs together into one graph of a whole step, and says what its parts are.

    batch -> microbatches -> forward and backward of each -> gradients, summed -> clip, update

The loss is the sum of those of the microbatches, each times its weight, and so are the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import fx

from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.conditions.assumptions import Assumed
from autopar.frontend.torch.step import loop
from autopar.frontend.torch.step.graph import START, Step
from autopar.frontend.torch.step.inputs import Inputs
from autopar.frontend.torch.step.microbatches import Microbatches
from autopar.frontend.torch.step.passes import Pass, joined
from autopar.frontend.torch.step.update import Update
from autopar.ir.program import Lifetime

aten = torch.ops.aten

_END = Lifetime("backward")
"""Where what concerns the gradients of all microbatches is."""


@dataclass(frozen=True)
class Computed:
    """What the forward and backward passes leave.

    Attributes:
        outputs: Results of the model by label, those of all microbatches put together.
        loss: The loss; None for a forward pass.
        gradients: By name of the parameter.
        buffers: New contents of buffers, and of parameters that forward overwrites, by name.
        written: New contents of tensors of the batch, by position.
        assumed: What must be as in the example.
        present: Whether parameters have a gradient, by name, of those where data decides.
    """

    outputs: Mapping[str, fx.Node]
    loss: fx.Node | None
    gradients: Mapping[str, fx.Node]
    buffers: Mapping[str, fx.Node]
    written: Mapping[int, fx.Node]
    assumed: Sequence[Assumed]
    present: Mapping[str, fx.Node]


def compute(
    step: Step,
    passes: Sequence[Pass],
    inputs: Inputs,
    microbatches: Microbatches,
    totals: Sequence[fx.Node] = (),
    scale: fx.Node | None = None,
) -> Computed:
    """Adds the forward and backward passes of all microbatches.

    Gradients are summed in the dtype that their parameters are stored in, and freed of the scale.

    Args:
        step: The step to which they are added.
        passes: The passes of the microbatches.
        inputs: The step's inputs.
        microbatches: How the batch is cut.
        totals: What denominators of the loss are, of the whole batch.
        scale: What the gradient of the loss is multiplied by; None for 1.
    """
    parts = _parts(step, passes, inputs, microbatches, totals, scale)
    first = passes[0].joint
    gradients = {
        name: _accumulated(step, parts, name, inputs.stored[name].meta["val"].dtype)
        for name in first.gradients
        if name in inputs.stored
    }
    if scale is not None:
        inverse = step.call(_END, aten.reciprocal.default, scale)
        gradients = {
            name: step.call(_END, aten.mul.Tensor, node, inverse)
            for name, node in gradients.items()
        }
    results = zip(*(part.outputs() for part in parts), strict=True)
    outputs = {
        label: joined(step, passes, nodes)
        for label, nodes in zip(first.structure.labels, results, strict=True)
    }
    written = {
        position: joined(step, passes, [p.made[p.joint.written[position]] for p in parts])
        for position in first.written
    }
    loss = None
    if first.tangents:
        loss = _weighted(step, parts)
    assumed = [each for part in parts for each in assumed_of(part.joint, part.made)]
    present = {
        name: _any(step, [part.made[part.joint.present[name]] for part in parts])
        for name in first.present
    }
    return Computed(outputs, loss, gradients, parts[-1].buffers, written, assumed, present)


class _Part(NamedTuple):
    """A copy of a captured graph.

    Attributes:
        own: The pass that it is of.
        made: The counterparts of its nodes.
        buffers: New contents of buffers, and of parameters that forward overwrites, by name.
    """

    own: Pass
    made: Mapping[fx.Node, fx.Node]
    buffers: Mapping[str, fx.Node]

    @property
    def joint(self) -> Joint:
        """The captured graph."""
        return self.own.joint

    def outputs(self) -> list[fx.Node]:
        """Returns its results."""
        return [self.made[node] for node in self.joint.outputs]

    def gradients(self, name: str) -> list[fx.Node]:
        """Returns the gradients of a parameter."""
        return [self.made[node] for node in self.joint.gradients[name]]


def _parts(
    step: Step,
    passes: Sequence[Pass],
    inputs: Inputs,
    microbatches: Microbatches,
    totals: Sequence[fx.Node],
    scale: fx.Node | None,
) -> list[_Part]:
    """Adds a copy of the captured graph for each pass, see `compute`.

    Each reads the buffers that the one before it leaves.
    """
    parts: list[_Part] = []
    for each in passes:
        joint, place = each.joint, each.place("forward")
        batch = each.rows_of(step, inputs.batch, microbatches, place)
        buffers = {**inputs.read, **(parts[-1].buffers if parts else {})}
        if each.times > 1:
            for name in joint.updates:
                buffers[name] = step.call(START, loop.carry, buffers[name])
                step.names[buffers[name]] = f"{name}.carried"
        given: dict[fx.Node, fx.Node] = dict(inputs.constants)
        for node, name in joint.stored.items():
            given[node] = buffers[name]
        for node, position in joint.batch.items():
            given[node] = batch[position]
        for tangent in joint.tangents.values():
            given[tangent] = _tangent(step, tangent, place, scale, each.weight)
        # The loss is a function of what is written, which has no other gradient.
        for tangent in joint.written_tangents.values():
            given[tangent] = _zeros(step, tangent, place)
        for denominator, total in zip(joint.denominators, totals, strict=True):
            given[denominator.given] = _share(step, place, denominator.dtype, total, each.weight)
        made = step.copy(joint.graph, given, place)
        left = {name: made[node] for name, node in joint.updates.items()}
        if each.times > 1:
            left = {n: step.call(place, loop.last, node, buffers[n]) for n, node in left.items()}
        parts.append(_Part(each, made, left))
    return parts


def _share(
    step: Step, place: Lifetime, dtype: torch.dtype, total: fx.Node, weight: float
) -> fx.Node:
    """Adds a microbatch's share of what the whole batch is divided by."""
    # A count times a number would have torch's default dtype.
    wide = torch.promote_types(dtype, torch.float32)
    share = step.call(place, aten.mul.Scalar, step.cast(place, total, wide), weight)
    return step.cast(place, share, dtype)


def _any(step: Step, nodes: Sequence[fx.Node]) -> fx.Node:
    """Adds whether one of some booleans is true."""
    found = nodes[0]
    for node in nodes[1:]:
        found = step.call(_END, aten.logical_or.default, found, node)
    return found


def kept_without(step: Step, present: fx.Node | None, new: fx.Node, old: fx.Node) -> fx.Node:
    """Adds the choice of an old value where its parameter has no gradient, as optimizers do."""
    if present is None:
        return new
    return step.call(Lifetime("update"), aten.where.self, present, new, old)


def assumed_of(joint: Joint, part: Mapping[fx.Node, fx.Node]) -> list[Assumed]:
    """Returns the assumptions of a copy of a captured graph."""
    return [replace(each, node=part[each.node]) for each in joint.assumed]


def _accumulated(step: Step, parts: Sequence[_Part], name: str, dtype: torch.dtype) -> fx.Node:
    """Adds a parameter's gradients as each is made, so that they never lie in memory together.

    Args:
        step: The step.
        parts: What has a gradient of it.
        name: Of the parameter.
        dtype: That of the sum.
    """
    total: fx.Node | None = None
    for part in parts:
        place = part.own.place("backward")
        for node in part.gradients(name):
            with step.graph.inserting_before(_behind(step, node, total)):
                gradient = step.cast(place, node, dtype)
                if total is not None:
                    gradient = step.call(place, aten.add.Tensor, total, gradient)
            total = gradient
    assert total is not None
    if parts[0].own.times == 1:
        return total
    with step.graph.inserting_before(total.next):
        return step.call(parts[0].own.place("backward"), loop.reduce, total, "sum")


def _behind(step: Step, *nodes: fx.Node | None) -> fx.Node:
    """Returns what follows the last of some nodes."""
    return max(node for node in nodes if node is not None).next


def _tangent(
    step: Step, like: fx.Node, place: Lifetime, scale: fx.Node | None, weight: float
) -> fx.Node:
    """Adds the gradient that the loss of a microbatch starts with."""
    dtype = like.meta["val"].dtype
    if scale is None:
        return step.call(place, aten.full.default, [], weight, dtype=dtype)
    part = scale if weight == 1 else step.call(place, aten.mul.Scalar, scale, weight)
    return step.cast(place, part, dtype)


def _zeros(step: Step, like: fx.Node, place: Lifetime) -> fx.Node:
    shape, dtype = list(like.meta["val"].shape), like.meta["val"].dtype
    return step.call(place, aten.full.default, shape, 0.0, dtype=dtype)


def update(
    step: Step,
    captured: Update,
    rates: Sequence[fx.Node],
    parameters: Sequence[fx.Node],
    gradients: Sequence[fx.Node],
    states: Sequence[fx.Node],
) -> tuple[fx.Node | None, list[fx.Node]]:
    """Adds clipping and the optimizer's step.

    Returns:
        The norm of all gradients, if they are clipped, and the new content of each parameter and
        state.
    """
    given: dict[fx.Node, fx.Node] = {}
    given.update(zip(captured.parameters, parameters, strict=True))
    given.update(zip(captured.gradients, gradients, strict=True))
    given.update(zip(captured.states, states, strict=True))
    given.update(zip(captured.rates, rates, strict=True))
    done = step.copy(captured.graph, given, Lifetime("update"))
    new = [done[node] for node in (*captured.new_parameters, *captured.new_states)]
    norm = None if captured.norm is None else done[captured.norm]
    return norm, new


def summed(step: Step, nodes: Sequence[fx.Node]) -> fx.Node:
    """Adds the sum of gradients of one parameter, and returns it."""
    total = nodes[0]
    for node in nodes[1:]:
        total = step.call(_END, aten.add.Tensor, total, node)
    return total


def _weighted(step: Step, parts: Sequence[_Part]) -> fx.Node:
    """Adds the sum of losses, each times its weight."""
    losses = [part.outputs()[0] for part in parts]
    first = parts[0].own
    if first.times > 1:
        place = first.place("forward")
        weighted = step.call(place, aten.mul.Scalar, losses[0], first.weight)
        return step.call(place, loop.reduce, weighted, "sum")
    if len(losses) == 1:
        return losses[0]
    total = step.call(START, aten.mul.Scalar, losses[0], first.weight)
    for loss, part in zip(losses[1:], parts[1:], strict=True):
        total = step.call(START, aten.add.Tensor, total, loss, alpha=part.own.weight)
    return total
