"""Arithmetic on uint16, uint32 and uint64, which torch stores but hardly computes with.

Their bits are taken as int64. Addition, subtraction, multiplication and shifts to the left are the
same for both; order and division differ for uint64 alone.
"""

from __future__ import annotations

import torch

_WIDE = (torch.uint16, torch.uint32, torch.uint64)
_SIGN = -(2**63)


def is_wide_unsigned(x: torch.Tensor) -> bool:
    """Tells whether torch can't compute with the dtype of `x`."""
    return x.dtype in _WIDE


def signed(x: torch.Tensor) -> torch.Tensor:
    """Returns the bits of `x` as int64; other integers are converted."""
    return x.to(torch.int64)


def unsigned(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns int64 bits as an unsigned dtype again; booleans are left alone."""
    return x if x.dtype == torch.bool else x.to(dtype)


def ordered(x: torch.Tensor) -> torch.Tensor:
    """Returns int64 numbers in the same order as the unsigned ones. Its own inverse for int64."""
    return signed(x) ^ _SIGN


def divide_unsigned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Divides 64-bit unsigned numbers given as int64 (Hacker's Delight, 9-3)."""
    half = ((a >> 1) & (2**63 - 1)) // b.clamp(min=1)
    quotient = half << 1
    rest = a - quotient * b
    quotient = quotient + (ordered(rest) >= ordered(b)).to(torch.int64)
    large = (ordered(a) >= ordered(b)).to(torch.int64)
    return torch.where(b < 0, large, quotient)
