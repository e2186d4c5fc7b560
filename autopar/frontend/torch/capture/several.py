"""Captured graphs of one model for microbatches of several sizes, as parts of one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.step.microbatches import Rows


def in_mode(joint: Joint, mode: FakeTensorMode) -> Joint:
    """Returns a captured graph with its fake tensors in another mode: those of two don't mix.

    The graph itself is changed.
    """

    def moved(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    with mode:
        for node in joint.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = pytree.tree_map_only(Tensor, moved, node.meta["val"])
    return joint


def check_alike(joints: Mapping[Rows, Joint], rows: Rows) -> None:
    """Refuses a model that returns, updates or trains other tensors for some number of rows.

    Args:
        joints: The captured graphs, by the rows of their microbatches.
        rows: Those of the one to be compared with the first.

    Raises:
        InvalidInputError: If so.
    """
    first = next(iter(joints))
    for what, one, other in zip(
        ("returns", "trains", "updates", "overwrites of the batch", "may leave without a gradient"),
        _left(joints[first]),
        _left(joints[rows]),
        strict=True,
    ):
        if one != other:
            raise InvalidInputError(
                f"what the model {what} is {_words(one)} for a microbatch of {first[0]} rows, and"
                f" {_words(other)} for one of {rows[0]}; give a batch whose rows accumulate="
                " divides"
            )


def _left(joint: Joint) -> tuple[list[Any], ...]:
    """Returns what a captured graph leaves, of each kind."""
    named = (joint.gradients, joint.updates, joint.written, joint.present)
    return [*joint.structure.labels], *(sorted(each) for each in named)


def _words(names: list[Any]) -> str:
    return ", ".join(map(str, names)) or "nothing"
