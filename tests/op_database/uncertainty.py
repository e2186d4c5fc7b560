"""How far rounding moves what a program computes, which tells it from being wrong.

Where terms cancel, two right ways to compute a number may differ by more than the number itself.
How much, shows if every value of the serial program is moved by up to a unit of rounding, at
random (Monte Carlo arithmetic: Parker, "Monte Carlo Arithmetic", 1997). Comparing both ways with
float64 would not do: one of two may be exact by luck.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autopar.ir.program import Program, Value
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.stepper import Scope
from autopar.runtime.verification.rounding import rounding_of

DRAWS = 8
"""How often values are moved."""


def uncertainty(
    program: Program, inputs: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> dict[str, float]:
    """Returns how far each output moves if everything is rounded at random, by label.

    Args:
        program: A serial program without weights.
        inputs: Its inputs by label.
        expected: Its outputs by label.
    """
    found = dict.fromkeys(expected, 0.0)
    for seed in range(DRAWS):
        dice = _Dice(seed)
        moved = {label: dice.move(tensor) for label, tensor in inputs.items()}
        for label, tensor in run_serial(program, {}, moved, dice.trace).items():
            found[label] = max(found[label], _distance(tensor, expected[label]))
    return found


class _Dice:
    """Moves numbers by up to a unit of rounding."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def trace(self, scope: Scope, value: Value, tensor: Tensor) -> Tensor:
        """Moves a value that was just computed."""
        return self.move(tensor)

    def move(self, tensor: Tensor) -> Tensor:
        """Returns a tensor whose elements are moved; as it is, if it isn't one of floats."""
        unit = rounding_of(tensor.dtype)
        if not unit:
            return tensor
        wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
        share = torch.rand(tensor.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        return (wide * (1 + unit * share)).to(tensor.dtype)


def _distance(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference of numbers; 0 if there are none, or they are integers."""
    if not rounding_of(expected.dtype) or found.shape != expected.shape:
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    difference = (found.to(wide) - expected.to(wide)).abs()
    finite = difference[difference.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0
