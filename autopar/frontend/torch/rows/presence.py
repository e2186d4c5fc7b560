"""Whether parameters have gradients: those that only skipped code reads have none.

An optimizer leaves a parameter without a gradient as it is, with its state, which isn't what it
does to one whose gradient is zero.
"""

from __future__ import annotations

from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

from autopar.frontend.torch.capture.fake import FakeModel
from autopar.frontend.torch.rows.selections import NotApart, Skippable

Absent = Literal["kept", "told", "any"]
"""What becomes of a parameter without a gradient: it is kept as it is, or its user is told so, who
reads gradients himself; or nobody reads any."""

Readers = tuple[tuple[Skippable, ...], ...]
"""The parts that are run where a parameter is read, each time."""


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
        self.trained = {
            name: each.fake
            for name, each in fake.stored.items()
            if isinstance(each.fake, nn.Parameter) and each.fake.requires_grad
        }
        self.told: dict[str, int] = {}
        watched = [] if absent == "any" else list(self.trained.values())
        self.selected.watch(watched)

    def tell(self) -> list[Tensor]:
        """Returns whether parameters have gradients, of those where data decides.

        Raises:
            NotApart: If the user would be told.
        """
        self.told = {}
        places: dict[Readers, int] = {}
        made: list[Tensor] = []
        for name, fake in self.trained.items():
            readers: Readers = self.selected.readers(fake)
            if not readers or () in readers:
                continue
            if self.absent == "told":
                raise NotApart(readers[0][-1].place)
            if readers not in places:
                places[readers] = len(made)
                made.append(self._one_of(readers))
            self.told[name] = places[readers]
        return made

    def _one_of(self, readers: Readers) -> Tensor:
        with self.selected.free(), torch.no_grad():
            each = [reduce(torch.logical_and, [p.entered for p in parts]) for parts in readers]
            return reduce(torch.logical_or, each).clone()
