"""What kernels of random ops take while they run: as predicted, to the byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from autopar.ir.memory.kernels import DRAWN_AT_ONCE
from autopar.ir.ops.create.drawing import DRAWINGS, drawing_bytes
from autopar.runtime.kernels import random_ops as kernels
from tests.judges.tracking import Tracking

SEED = torch.tensor(5)
COUNTS = (1, 1000, DRAWN_AT_ONCE, DRAWN_AT_ONCE + 1, 4 * DRAWN_AT_ONCE, 5 * DRAWN_AT_ONCE // 2)

Kernel = Callable[[Tensor], Tensor | tuple[Tensor, Tensor]]
KERNELS: Mapping[str, Kernel] = {
    "autopar.rand": lambda x: kernels.rand(SEED, 3, x.shape, x.dtype, -1.0, 2.0),
    "autopar.randn": lambda x: kernels.randn(SEED, 3, x.shape, x.dtype),
    "autopar.randint": lambda x: kernels.randint(SEED, 3, 0, 10, x.shape, torch.int64),
    "autopar.bernoulli": lambda x: kernels.bernoulli(x, SEED, 3),
    "autopar.bernoulli_p": lambda x: kernels.bernoulli_p(SEED, 3, x.shape, 0.3, x.dtype),
    "autopar.dropout": lambda x: kernels.dropout(x, SEED, 3, 0.3),
    "autopar.rrelu": lambda x: kernels.rrelu(x, SEED, 3),
    "autopar.exponential": lambda x: kernels.exponential(SEED, 3, x.shape, x.dtype),
    "autopar.cauchy": lambda x: kernels.cauchy(SEED, 3, x.shape, x.dtype),
    "autopar.log_normal": lambda x: kernels.log_normal(SEED, 3, x.shape, x.dtype),
    "autopar.geometric": lambda x: kernels.geometric(SEED, 3, x.shape, 0.3, x.dtype),
    "autopar.permutation": lambda x: kernels.permutation(SEED, 3, len(x), torch.int64),
}


@pytest.mark.parametrize("kind", DRAWINGS)
def test_a_kernel_takes_what_is_predicted(kind: str) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for count in COUNTS:
            x = torch.rand(count).to(dtype)
            with Tracking([SEED, x]) as seen:
                found = KERNELS[kind](x)
            result = found[0] if isinstance(found, tuple) else found
            assert result.dtype in (dtype, torch.int64)
            taken = seen.peak_bytes - SEED.nbytes - x.nbytes
            assert taken == drawing_bytes(kind, count, result.itemsize)


def test_without_pieces_all_is_drawn_at_once() -> None:
    """As on a GPU: many times what it is in pieces, where elements are many."""
    count = 100 * DRAWN_AT_ONCE
    assert drawing_bytes("autopar.dropout", count, 4) == 9 * count
    assert drawing_bytes("autopar.dropout", count, 4, in_pieces=False) == 24 * count + 8
