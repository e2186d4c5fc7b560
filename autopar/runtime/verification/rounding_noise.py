"""How far rounding alone takes gradients: the serial step, rounded otherwise at random.

Each result of an op is moved to a neighbouring number, up or down as a coin falls (Parker, *Monte
Carlo Arithmetic*, 1997). What a gradient then differs by, the program doesn't know about it. One
that is zero but for rounding, as that of a bias of keys, differs by as much as it is; one that is
small beside others, and computed well, stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autopar.ir.program import Program, Value
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.stepper import Scope
from autopar.runtime.ports.ports import Arrays

RUNS = 3
"""Of which the largest difference counts."""


def gradient_noise(
    program: Program,
    weights: Mapping[str, Tensor],
    inputs: Arrays,
    gradients: Mapping[str, Tensor],
) -> dict[str, float]:
    """Returns how far rounding takes values of `main`: the largest absolute difference.

    Args:
        program: A serial program.
        weights: Its weights, by value name.
        inputs: Its inputs by label.
        gradients: The values in question as the program computes them, by name.
    """
    found = dict.fromkeys(gradients, 0.0)
    generator = torch.Generator().manual_seed(0)

    def trace(scope: Scope, value: Value, tensor: Tensor) -> Tensor:
        if not scope and value.name in gradients:
            difference = (tensor.double() - gradients[value.name].double()).abs().nan_to_num(0.0)
            found[value.name] = max(found[value.name], float(difference.max()))
        return _moved(tensor, generator)

    for _ in range(RUNS):
        run_serial(program, weights, inputs, trace)
    return found


def _moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Returns floats that are one unit of rounding off, up or down; others as they are.

    Whole numbers stay too: they may be counts, of which an index is made.
    """
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
        return tensor
    wide = tensor.double() if tensor.dtype == torch.float64 else tensor.float()
    # In the tensor's own precision: integers times a number are floats of 32 bits.
    signs = torch.randint(0, 2, tensor.shape, generator=generator).to(wide) * 2 - 1
    moved = (wide * (1 + signs * torch.finfo(tensor.dtype).eps)).to(tensor.dtype)
    return torch.where(moved.isfinite() & (tensor != tensor.round()), moved, tensor)
