"""The monoids by which pending values are reduced: their identities, and reference reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from autopar.base.errors import RuntimeFailure
from autopar.ir.emitted import OF_BOOLEANS


def identity(monoid: str, dtype: torch.dtype) -> bool | int | float:
    """Returns the element that doesn't change a reduction: 0 for sum, -inf or the least for max.

    Raises:
        RuntimeFailure: If the monoid is unknown or not defined for the dtype.
    """
    if monoid in ("any", "sum"):
        return False if dtype == torch.bool else 0
    if monoid in ("all", "prod"):
        return True if dtype == torch.bool else 1
    if monoid in ("max", "min") and not dtype.is_complex:
        return _extreme(dtype, -1 if monoid == "max" else 1)
    raise RuntimeFailure(f"no reduction {monoid!r} for elements of {dtype}")


def _extreme(dtype: torch.dtype, sign: int) -> bool | int | float:
    if dtype == torch.bool:
        return sign > 0
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return info.max if sign > 0 else info.min
    # e4m3fn has no infinities: its largest finite number serves.
    return sign * (torch.finfo(dtype).max if dtype == torch.float8_e4m3fn else float("inf"))


_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "any": torch.logical_or,
    "all": torch.logical_and,
}


def reduce_tensors(monoid: str, tensors: Sequence[Tensor]) -> Tensor:
    """Returns the reduction of tensors of one shape and dtype, first to last.

    Floats below 32 bits are accumulated in 32 and rounded once. NaN survives every reduction.

    Raises:
        RuntimeFailure: If the monoid is unknown or not defined for the dtype.
    """
    if monoid not in _COMBINE:
        raise RuntimeFailure(f"unknown reduction {monoid!r}; known: {', '.join(_COMBINE)}")
    dtype = tensors[0].dtype
    if dtype.is_complex and monoid in ("max", "min"):
        raise RuntimeFailure(f"no reduction {monoid!r} for elements of {dtype}: they have no order")
    if dtype == torch.uint64:
        return from_signed(reduce_tensors(monoid, [signed(t, monoid) for t in tensors]), monoid)
    combine = _COMBINE[OF_BOOLEANS.get(monoid, monoid) if dtype == torch.bool else monoid]
    wide = accumulator(dtype)
    total = tensors[0].to(wide)
    for tensor in tensors[1:]:
        total = combine(total, tensor.to(wide))
    return total.to(dtype)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which elements are accumulated."""
    if dtype.is_floating_point and dtype.itemsize < 4:
        return torch.float32
    return _WIDER.get(dtype, dtype)


def signed(x: Tensor, monoid: str) -> Tensor:
    """Returns 64-bit unsigned integers, with which torch doesn't compute, as signed ones.

    Sums and products are the same modulo 2^64; for max and min the order is kept.
    """
    bits = x.view(torch.int64)
    return bits ^ _TOP_BIT if monoid in ("max", "min") else bits


def from_signed(x: Tensor, monoid: str) -> Tensor:
    """Returns the unsigned integers of `signed`."""
    bits = x ^ _TOP_BIT if monoid in ("max", "min") else x
    return bits.view(torch.uint64)


_TOP_BIT = -(2**63)
_WIDER = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.complex32: torch.complex64,
}
