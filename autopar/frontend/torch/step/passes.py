"""Passes: what computes the microbatches of a batch, each by itself or all of them in a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import fx

from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.step import loop
from autopar.frontend.torch.step.graph import START, Step
from autopar.frontend.torch.step.microbatches import Microbatches
from autopar.ir.program import MICROBATCH, Lifetime

aten = torch.ops.aten


class Pass(NamedTuple):
    """The passes of one microbatch, or those of all of them, which are alike.

    Attributes:
        joint: The captured graph.
        weight: Of the loss of a microbatch in that of the batch.
        number: Of the microbatch; 0 if it is a loop.
        times: How often it runs: 1 if it is no loop.
    """

    joint: Joint
    weight: float
    number: int = 0
    times: int = 1

    def place(self, phase: str) -> Lifetime:
        """Returns where the ops of a phase are."""
        loops = ((MICROBATCH, self.times),) if self.times > 1 else ()
        return Lifetime(phase, self.number, loops)

    def rows_of(
        self, step: Step, batch: Sequence[fx.Node], microbatches: Microbatches, place: Lifetime
    ) -> Sequence[fx.Node]:
        """Adds the tensors of the microbatch; those of the batch, if it isn't cut.

        Args:
            step: The step to which they are added.
            batch: The tensors of the batch.
            microbatches: How it is cut.
            place: Where they are.
        """
        if not microbatches.bounds:
            return batch
        if self.times > 1:
            return [_part(step, node, self.times) for node in batch]
        return [
            step.call(place, aten.slice.Tensor, node, 0, begin, end)
            for node, (begin, end) in zip(batch, microbatches.ranges(self.number), strict=True)
        ]


def _part(step: Step, node: fx.Node, times: int) -> fx.Node:
    """Adds what an iteration has of a tensor of the batch."""
    part = step.call(START, loop.take, node, times)
    step.names[part] = f"{step.inputs[node].name}.part"
    return part


def passes_of(joints: Sequence[Joint], microbatches: Microbatches) -> list[Pass]:
    """Returns the passes that compute a batch: one, a loop, where all microbatches are alike.

    A parameter that one leaves for the next, or what the caller sees of each, keeps them apart.

    Args:
        joints: The captured passes of each microbatch.
        microbatches: How the batch is cut.
    """
    weights, first = microbatches.weights, joints[0]
    is_alike = all(joint is first for joint in joints) and len(set(weights)) == 1
    if is_alike and len(joints) > 1 and not _is_seen(first):
        return [Pass(first, weights[0], times=len(joints))]
    pairs = zip(joints, weights, strict=True)
    return [Pass(joint, weight, number) for number, (joint, weight) in enumerate(pairs)]


def _is_seen(joint: Joint) -> bool:
    """Whether a pass leaves a parameter for the next one, or something of it alone is looked at."""
    overwritten = not joint.gradients.keys().isdisjoint(joint.updates)
    return bool(overwritten or joint.assumed or joint.present or joint.written)


def joined(step: Step, passes: Sequence[Pass], parts: Sequence[fx.Node]) -> fx.Node:
    """Adds what passes leave, put together along the first dimension, and returns it."""
    is_scalar, times = parts[0].meta["val"].ndim == 0, passes[0].times
    if times > 1:
        together = loop.stack if is_scalar else loop.cat
        return step.call(passes[0].place("forward"), together, parts[0], times)
    if len(parts) == 1:
        return parts[0]
    return step.call(START, (aten.stack if is_scalar else aten.cat).default, list(parts))
