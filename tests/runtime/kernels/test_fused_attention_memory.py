"""What attention on GPUs is said to take besides its results, beside what its copies take.

Fakes don't show what a kernel takes within: sums in 32 bits, and heads of the keys that are shared.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from autopar.cost.memory.kernel_results import effect
from autopar.ir.memory.strides import Placed
from autopar.ir.ops.products.attention import ATTENTION
from autopar.ir.ops.products.attention_backward import ATTENTION_BACKWARD
from autopar.runtime.kernels.fused_attention import attention, attention_backward
from autopar.runtime.verification.without_driver import without_driver
from tests.judges.tracking import Tracking

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
CASES: dict[str, tuple[torch.dtype, tuple[int, int], tuple[int, int], tuple[int, ...]]] = {
    "flash": (BF16, (8, 8), (250, 64), ()),
    "flash, padded": (BF16, (8, 8), (250, 60), ()),
    "flash, shared": (BF16, (8, 2), (250, 64), ()),
    "efficient": (F32, (8, 8), (250, 64), ()),
    "efficient, padded": (F32, (8, 8), (250, 62), ()),
    "efficient, shared": (F32, (8, 2), (250, 64), ()),
    "efficient, a mask": (F32, (8, 8), (250, 64), (2, 1, 250, 250)),
    "efficient, a mask as it lies": (BF16, (8, 8), (256, 64), (1, 1, 256, 256)),
    "by definition": (F64, (8, 8), (250, 64), ()),
}
"""Dtype, heads of queries and keys, their length and size, and the shape of a mask."""

SMALL = 80e3
"""Bytes of masks of rows, of logarithms of sums, and of what stands for random state."""


@pytest.mark.parametrize("name", CASES)
def test_copies_are_counted(name: str) -> None:
    dtype, (heads, shared), (length, size), masked = CASES[name]
    with FakeTensorMode(), torch.no_grad(), without_driver():

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="cuda")

        query, key, value = (empty(2, each, length, size) for each in (heads, shared, shared))
        mask = empty(*masked) if masked else None
        given = [query, key, value, *([] if mask is None else [mask])]
        found, forward = tracked(given, lambda: attention(query, key, value, attn_mask=mask))
        said = taken(ATTENTION, given, found)
        assert forward - SMALL <= said <= 1.4 * forward + SMALL
        out, sums = found
        given = [out, query, key, value, out, sums, *given[3:]]
        found, backward = tracked(
            given,
            lambda: attention_backward(
                out, query, key, value, out, sums, 0.0, False, attn_mask=mask
            ),
        )
        said = taken(ATTENTION_BACKWARD, given, found)
        assert backward - SMALL <= said <= 1.4 * backward + hidden(query, key) + SMALL


def hidden(query: Tensor, key: Tensor) -> float:
    """Returns what the gradient's kernel takes within, at most."""
    rows = math.prod(query.shape[:-1])
    sums = 4 * math.prod(query.shape[:-2]) * 256 * 64 if query.itemsize == 2 else 0
    gradients = 2 * query.nbytes * 1.1 if query.shape != key.shape else 0
    return 4 * rows + sums + gradients


def tracked(given: list[Tensor], call: Any) -> tuple[list[Tensor], int]:
    """Returns the results of a call, and the most that there was besides them and its operands."""
    with Tracking(given) as seen:
        found = list(call())
    before = sum({id(each): each.untyped_storage().nbytes() for each in given}.values())
    return found, seen.peak_bytes - before - sum(each.nbytes for each in found)


def taken(kind: str, given: list[Tensor], found: list[Tensor]) -> int:
    """Returns what a kernel is said to take besides its results, which lie as is said."""
    placed = tuple(Placed(tuple(t.shape), tuple(t.stride()), t.element_size()) for t in given)
    shapes = tuple(tuple(result.shape) for result in found)
    said = effect(kind, (), placed, shapes)
    for result, each in zip(found, said.results, strict=True):
        whole = result.untyped_storage().nbytes() == result.nbytes
        assert not whole or result.stride() == each.strides
    return said.temporary_bytes
