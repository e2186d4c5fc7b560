"""Reductions on backends that have gaps.

Gloo's MAX and MIN lose NaN depending on the order of the ranks, so those of floats run on integers
of the same order, in which NaN is the extreme. Short integers and 8-bit floats are summed in a
wider dtype and rounded once; 64-bit unsigned integers as signed ones.

Gloo reduces in twice as many steps as it gathers: small tensors are gathered and reduced by every
member.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from autopar.base.errors import RuntimeFailure
from autopar.ir.memory.kernels import SHORT_SUM_BYTES
from autopar.runtime.collectives.groups import Group
from autopar.runtime.collectives.monoids import accumulator, from_signed, reduce_tensors, signed
from autopar.runtime.collectives.pieces import sent_to_all, wait
from autopar.runtime.collectives.wire_dtypes import PLAIN


def all_reduce(x: Tensor, monoid: str, group: Group) -> Tensor:
    """Returns the reduction of the members' tensors, which have one shape."""
    if group.size == 1 or x.numel() == 0:
        return x
    if x.dtype == torch.uint64 and monoid in _NATIVE_NAMES:
        return from_signed(_native(signed(x, monoid), monoid, group), monoid)
    reducer = _reducer(monoid, x.dtype)
    return reducer(x.contiguous(), monoid, group).to(x.dtype)


def summable(monoid: object, dtype: torch.dtype) -> bool:
    """Returns whether a reduction is a sum that every backend forms as it is."""
    return monoid == "sum" and dtype in PLAIN


def is_short(x: Tensor, group: Group) -> bool:
    """Returns whether gathering the members' tensors is faster than reducing them."""
    # Not `nbytes`, which tensors of open sizes don't have while they are compiled.
    nbytes = x.numel() * x.element_size()
    return group.backend == "gloo" and group.size * nbytes <= SHORT_SUM_BYTES


def reduced(gathered: Tensor, monoid: str, group: Group) -> Tensor:
    """Returns the reduction of gathered tensors, in the order of the blocks."""
    return reduce_tensors(monoid, [gathered[at] for at in group.order])


def _reducer(monoid: str, dtype: torch.dtype) -> Callable[[Tensor, str, Group], Tensor]:
    if dtype == torch.bool or monoid in ("any", "all"):
        return _reduce_truth
    if dtype.is_complex and monoid in ("sum", "prod"):
        return _reduce_complex
    if monoid not in _NATIVE_NAMES or dtype.is_complex:
        raise RuntimeFailure(f"no reduction {monoid!r} for elements of {dtype}")
    ordered = monoid in ("max", "min") and dtype.is_floating_point
    return _reduce_ordered if ordered else _reduce_wide


def _reduce_wide(x: Tensor, monoid: str, group: Group) -> Tensor:
    wide = x.dtype if x.dtype in PLAIN else accumulator(x.dtype)
    return _native(x.to(wide), monoid, group)


def _reduce_truth(x: Tensor, monoid: str, group: Group) -> Tensor:
    either = monoid in ("any", "max", "sum")
    return _native((x != 0).to(torch.uint8), "max" if either else "min", group)


def _reduce_ordered(x: Tensor, monoid: str, group: Group) -> Tensor:
    """MAX or MIN of floats, as integers: in IEEE 754, magnitudes order like their bit patterns."""
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    integer = torch.int64 if wide.dtype == torch.float64 else torch.int32
    magnitude = torch.iinfo(integer).max
    bits = wide.view(integer)
    keys = torch.where(bits < 0, bits ^ magnitude, bits)
    # Beyond every number on the side that wins, whatever sign and payload the NaN has.
    extreme = magnitude if monoid == "max" else torch.iinfo(integer).min
    keys = torch.where(torch.isnan(wide), extreme, keys)
    keys = _native(keys, monoid, group)
    return torch.where(keys < 0, keys ^ magnitude, keys).view(wide.dtype)


def _reduce_complex(x: Tensor, monoid: str, group: Group) -> Tensor:
    if monoid == "sum":
        parts = torch.view_as_real(x.to(accumulator(x.dtype)).contiguous())
        return torch.view_as_complex(_native(parts, "sum", group))
    gathered = wait(sent_to_all(torch.view_as_real(x).unsqueeze(0), group))
    return reduced(torch.view_as_complex(gathered), "prod", group)


_NATIVE_NAMES = {"sum": "sum", "max": "max", "min": "min", "prod": "product"}


def _native(x: Tensor, monoid: str, group: Group) -> Tensor:
    if is_short(x, group):
        return reduced(wait(sent_to_all(x.unsqueeze(0), group)), monoid, group)
    ops = torch.ops._c10d_functional
    return wait(ops.all_reduce(x.contiguous(), _NATIVE_NAMES[monoid], group.tag))
