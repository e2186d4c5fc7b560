"""How coarsely values were rounded on their way: a cast of halves is no finer than halves."""

from __future__ import annotations

import torch

from autopar.ir.program import Program, Value
from autopar.runtime.kernels.table import TORCH_DTYPES

ALLOWED_ROUNDINGS = 8
"""Units of rounding by which equal computations in another order may differ."""


def rounding_of(dtype: torch.dtype) -> float:
    """Returns the unit of rounding of a dtype: eps of floats, 0 of all others."""
    inexact = dtype.is_floating_point or dtype.is_complex
    return torch.finfo(dtype).eps if inexact else 0.0


def roundings(program: Program) -> dict[str, float]:
    """Returns the coarsest unit of rounding of the ops that led to each value of `main`, by name.

    Inputs and weights are the same for everybody, whatever their dtype.
    """
    main = program.main
    found = dict.fromkeys(main.inputs, 0.0)
    for op in main.ops:
        before = max((found[name] for name in op.operands), default=0.0)
        for name in op.results:
            found[name] = max(before, _own(main.values[name]))
    return found


def _own(value: Value) -> float:
    return rounding_of(TORCH_DTYPES[value.dtype])
