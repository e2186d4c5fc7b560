"""Whether parameters have gradients: those that only skipped code reads have none.

An optimizer leaves a parameter without a gradient as it is, with its state, which isn't what it
does to one whose gradient is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from autopar.frontend.torch.capture.fake import FakeModel
from autopar.frontend.torch.rows.gradients import (
    ALWAYS,
    When,
    gradient_node,
    gradients_reached,
)
from autopar.frontend.torch.rows.selections import NotApart

Absent = Literal["kept", "told", "any"]
"""What becomes of a parameter without a gradient: it is kept as it is, or its user is told so, who
reads gradients himself; or nobody reads any."""


class Presence:
    """Tells about the parameters of a model, run by run.

    Args:
        fake: The model.
        absent: What becomes of those without one.

    Attributes:
        told: By name of the parameter, which of what `tell` returned tells about it.
    """

    def __init__(self, fake: FakeModel, *, absent: Absent) -> None:
        self.selected = fake.answering.selected
        self.absent: Absent = absent
        self.model = fake.module
        self.trained = [
            name
            for name, each in fake.stored.items()
            if isinstance(each.fake, nn.Parameter) and each.fake.requires_grad
        ]
        self.told: dict[str, int] = {}

    def tell(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Returns whether parameters have gradients, of those where data decides.

        Args:
            outputs: What is differentiated.

        Raises:
            NotApart: If the user would be told.
        """
        self.told = {}
        selected = self.selected
        if self.absent == "any" or not selected.parts:
            return []
        found = gradients_reached(outputs, selected.parts, selected.kept)
        parameters = dict(self.model.named_parameters())
        known: dict[When, Tensor] = {}
        places: dict[When, int] = {}
        for name in self.trained:
            node = gradient_node(parameters[name])
            when = ALWAYS if node is None else found.get(node, ALWAYS)
            if when is ALWAYS:
                continue
            if self.absent == "told":
                raise NotApart(min(part.place for _, part in when.ways))
            self.told[name] = places.setdefault(when, len(places))
        with selected.free(), torch.no_grad():
            return [when.tensor(known).clone() for when in places]
