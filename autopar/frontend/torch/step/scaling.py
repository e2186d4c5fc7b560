"""Loss scaling: keeps small gradients of half-precision passes from vanishing.

As `torch.amp.GradScaler` does it: the loss's gradient is multiplied by a scale, gradients are
divided by it, and if one of them isn't finite the step changes nothing but lowers the scale; after
a number of good steps in a row it grows. Here the scale is part of the program's state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from autopar.frontend.torch.step.state import StateTensor

OWNER = "loss_scale"
"""Stands in names of state where a parameter's name stands otherwise."""


@dataclass(frozen=True)
class Scaling:
    """The rule that a scale follows.

    Attributes:
        scale: The scale of the first step.
        growth, backoff: What it is multiplied by after `interval` good steps, and a bad one.
        interval: Number of good steps in a row.
    """

    scale: float
    growth: float
    backoff: float
    interval: int

    @classmethod
    def of(cls, scaler: torch.amp.GradScaler) -> Scaling | None:
        """Returns the rule that a scaler follows; None if it is disabled."""
        if not scaler.is_enabled():
            return None
        return cls(
            float(scaler.get_scale()),
            scaler.get_growth_factor(),
            scaler.get_backoff_factor(),
            scaler.get_growth_interval(),
        )

    def states(self, mode: FakeTensorMode) -> list[StateTensor]:
        """Returns the scale and the number of good steps since it changed, as they start."""
        with mode:
            scale = torch.empty((), dtype=torch.float32)
            steps = torch.empty((), dtype=torch.int32)
        return [
            StateTensor("scale", OWNER, scale, self.scale),
            StateTensor("good_steps", OWNER, steps, 0.0),
        ]

    def updated(self, finite: Tensor, scale: Tensor, steps: Tensor) -> list[Tensor]:
        """Returns the new scale and number of good steps."""
        good = steps + 1
        grown = good == self.interval
        larger = torch.where(grown, scale * self.growth, scale)
        kept = torch.where(grown, torch.zeros_like(good), good)
        return [
            torch.where(finite, larger, scale * self.backoff),
            torch.where(finite, kept, torch.zeros_like(good)),
        ]
