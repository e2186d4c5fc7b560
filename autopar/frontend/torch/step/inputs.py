"""What a step reads: what is stored of a model, constants, and the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx

from autopar.frontend.lower.exported import GraphInput
from autopar.frontend.torch.capture.fake import Stored, is_absent
from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.step.graph import START, Step

aten = torch.ops.aten


class Inputs:
    """The inputs that a model needs, added to a step.

    Args:
        step: The step.
        joints: The captured graphs, each once.
        stored: The model's tensors by name.
        labels: Names of the tensors of the batch.
        batch: Fake tensors of the whole batch.
        types: What parameters are stored as, by name, where that isn't the model's dtype.
        whole: Whether the program stores all that the model's state dict has, even what nothing
            reads.

    Attributes:
        stored: The inputs that are the model's tensors, by name.
        read: What the model reads of them.
        constants: The counterparts of nodes of captured graphs that get constants.
        constant_values: The constants by name.
        batch: The inputs that are tensors of the batch.
    """

    def __init__(
        self,
        step: Step,
        joints: Sequence[Joint],
        stored: Mapping[str, Stored],
        labels: Sequence[str],
        batch: Sequence[Tensor],
        types: Mapping[str, torch.dtype],
        whole: bool,
    ) -> None:
        used = {
            name
            for joint in joints
            for name in (*joint.stored.values(), *joint.gradients, *joint.updates)
        }
        updated = {name for joint in joints for name in joint.updates}
        self.stored = {}
        for name, each in sorted(stored.items(), key=lambda item: item[1].role != "parameter"):
            if name in used or (whole and each.persistent):
                role = each.role
                if role == "buffer" and not each.persistent:
                    # What is neither saved nor changed is a table that the model computed.
                    role = "state" if name in updated else "constant"
                given = GraphInput(name, role, name, aliases=each.aliases[1:])
                typed = _typed(step, each.fake, types, name)
                if role == "constant":
                    with step.mode:
                        typed = storable(typed)
                self.stored[name] = step.input(given, typed)
        # What the model reads.
        self.read = {
            name: step.cast(START, _complex(step, node, stored[name].fake), stored[name].fake.dtype)
            for name, node in self.stored.items()
        }
        self.constants: dict[fx.Node, fx.Node] = {}
        self.constant_values: dict[str, Tensor] = {}
        for joint in joints:
            self._add_constants(step, joint, [*joints[0].constants.items()])
        self.labels = labels
        self.tensors = batch
        self.batch: list[fx.Node] = []

    def _add_constants(
        self, step: Step, joint: Joint, first: Sequence[tuple[fx.Node, Tensor]]
    ) -> None:
        """Adds the constants of a graph that aren't those of the first one in their place."""
        for at, (node, tensor) in enumerate(joint.constants.items()):
            like, known = first[at] if at < len(first) else (node, tensor)
            if like in self.constants and _is_same(tensor, known):
                self.constants[node] = self.constants[like]
                continue
            name = f"constant.{len(self.constant_values)}"
            held = step.input(GraphInput(name, "constant"), storable(tensor))
            self.constants[node] = _complex(step, held, tensor)
            self.constant_values[name] = tensor

    def add_batch(self, step: Step) -> None:
        """Adds the batch, which comes after all that is stored."""
        for label, tensor in zip(self.labels, self.tensors, strict=True):
            self.batch.append(step.input(GraphInput(label, "input", label), tensor))


def storable(constant: Tensor) -> Tensor:
    """Returns a constant as files of weights have it: no complex numbers of 128 bits."""
    if constant.dtype != torch.complex128:
        return constant
    return torch.view_as_real(constant.resolve_conj())


def _is_same(tensor: Tensor, other: Tensor) -> bool:
    """Whether constants are alike; absent ones never are."""
    if is_absent(tensor) or is_absent(other) or tensor.dtype != other.dtype:
        return False
    return torch.equal(tensor, other)


def _complex(step: Step, stored: fx.Node, tensor: Tensor) -> fx.Node:
    """Returns what was stored of a tensor as the tensor that it is."""
    if stored.meta["val"].is_complex() or not tensor.is_complex():
        return stored
    return step.call(START, aten.view_as_complex.default, stored)


def _typed(step: Step, fake: Tensor, types: Mapping[str, torch.dtype], name: str) -> Tensor:
    with step.mode:
        return fake.to(types[name]) if name in types else fake
