"""The identities of reductions, and reductions by definition, for every dtype."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autopar.base.errors import RuntimeFailure
from autopar.runtime.collectives.monoids import identity, reduce_tensors
from autopar.runtime.kernels.table import TORCH_DTYPES

MONOIDS = ("sum", "prod", "max", "min", "any", "all")
DEFINED = [
    (name, monoid)
    for name, dtype in TORCH_DTYPES.items()
    for monoid in MONOIDS
    if not (dtype.is_complex and monoid in ("max", "min"))
]


def elements(dtype: torch.dtype, monoid: str) -> Tensor:
    """What is most easily lost: extremes, infinities where there are, zero, and NaN."""
    if monoid in ("any", "all"):
        return torch.tensor([0, 1]).to(dtype)
    if dtype == torch.bool or dtype.is_complex:
        return torch.tensor([False, True, True]).to(dtype)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor([info.min, 0, 3, info.max], dtype=dtype)
    info = torch.finfo(dtype)
    # e4m3fn has no infinities; converting them gives NaN.
    ends = [info.min, info.max] if dtype == torch.float8_e4m3fn else [-torch.inf, torch.inf]
    finite = torch.tensor([*ends, info.max, info.min, 0.0, -2.0], dtype=torch.float64)
    return torch.cat([finite, torch.tensor([torch.nan], dtype=torch.float64)]).to(dtype)


def same(found: Tensor, expected: Tensor) -> bool:
    if found.dtype == torch.uint64:
        return found.tolist() == expected.tolist()
    wide = torch.complex128 if found.is_complex() else torch.float64
    return torch.allclose(found.to(wide), expected.to(wide), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "monoid"), DEFINED)
def test_an_identity_changes_nothing(name: str, monoid: str) -> None:
    dtype = TORCH_DTYPES[name]
    x = elements(dtype, monoid)
    nothing = torch.full(x.shape, identity(monoid, dtype), dtype=dtype)
    assert same(reduce_tensors(monoid, [x, nothing]), x)
    assert same(reduce_tensors(monoid, [nothing, x, nothing]), x)


@pytest.mark.parametrize("name", ["c64", "c128"])
@pytest.mark.parametrize("monoid", ["max", "min"])
def test_complex_numbers_have_no_order(name: str, monoid: str) -> None:
    dtype = TORCH_DTYPES[name]
    with pytest.raises(RuntimeFailure, match=f"no reduction '{monoid}' for elements of {dtype}"):
        identity(monoid, dtype)
    with pytest.raises(RuntimeFailure, match="they have no order"):
        reduce_tensors(monoid, [torch.ones(2, dtype=dtype)] * 2)


def test_large_unsigned_integers_are_ordered_and_summed() -> None:
    x = torch.tensor([2**63 + 5, 1, 2**64 - 1], dtype=torch.uint64)
    y = torch.tensor([7, 2**63, 2], dtype=torch.uint64)
    assert reduce_tensors("max", [x, y]).tolist() == [2**63 + 5, 2**63, 2**64 - 1]
    assert reduce_tensors("min", [x, y]).tolist() == [7, 1, 2]
    assert reduce_tensors("sum", [x, y]).tolist() == [2**63 + 12, 2**63 + 1, 1]
