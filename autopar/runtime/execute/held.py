"""State that is held: a step changes nothing where its loss is wrong, or an assumption.

The host of an accelerator would have to wait for all that it was told, only to learn of a loss that
is right nearly always. So the device decides: it compares, and writes old content over itself where
something is wrong. The host reads later what it was (see `autopar.runtime.training.verdicts`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autopar.ir.assumptions import Assumption
from autopar.runtime.kernels.table import Kernel


def judging(assumptions: Sequence[Assumption], finite: bool) -> Callable[..., Tensor]:
    """Returns what a program calls with its first output and the scalars that it assumes.

    Args:
        assumptions: What the scalars must be.
        finite: Whether the first output must be finite, as a loss.
    """

    def judge(first: Tensor, *scalars: Tensor) -> Tensor:
        found = [_holds(*each) for each in zip(assumptions, scalars, strict=True)]
        found += [first.isfinite().all()] if finite else []
        right = found[0]
        for each in found[1:]:
            right = right & each
        return right

    return judge


def held(new: Tensor, old: Tensor, right: Tensor) -> Tensor:
    """Writes new content over the old one where that is right; returns it."""
    return torch.where(right, new, old, out=old)


def kept(new: Tensor, old: Tensor, right: Tensor) -> Tensor:
    """Returns the content that a step leaves, apart from the old one."""
    return torch.where(right, new, old)


def held_step(step: Kernel) -> Kernel:
    """Returns a fused step of an optimizer, which torch lets skip itself by a number: 1 for wrong.

    The number is there for scaled gradients that aren't finite; a program may have one already.
    """

    def stepped(*args: Any, right: Tensor, found_inf: Tensor | None = None, **kwargs: Any) -> Any:
        wrong = right.logical_not().to(torch.float32)
        if found_inf is not None:
            wrong = torch.maximum(wrong, found_inf)
        return step(*args, found_inf=wrong, **kwargs)

    return stepped


def held_sum(self: Tensor | list[Tensor], other: float, *, right: Tensor) -> None:
    """Adds a number to tensors of one dtype, as steps are counted, where that is right."""
    tensors = self if isinstance(self, list) else [self]
    amount = right.to(tensors[0].dtype) * other
    torch._foreach_add_(tensors, [amount] * len(tensors))


def _holds(assumption: Assumption, scalar: Tensor) -> Tensor:
    """Returns `assumption.holds` of a scalar on its device."""
    expected = assumption.expected
    if isinstance(expected, float) and math.isnan(expected):
        return scalar.isnan()
    same = scalar == expected
    if not assumption.rounding:
        return same
    wide = scalar.to(torch.float64)
    largest = wide.abs().clamp(min=abs(expected))
    close = (wide - expected).abs() <= assumption.rounding * largest
    return same | (close & wide.isfinite())
