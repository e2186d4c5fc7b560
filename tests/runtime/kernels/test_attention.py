"""Attention as other devices compute it equals the CPU's own op."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autopar.ir.ops.products.attention import FLASH
from autopar.ir.ops.products.attention_backward import FLASH_BACKWARD
from autopar.runtime.kernels.attention import attention, attention_backward
from autopar.runtime.kernels.table import kernel


def operands(mask: bool) -> tuple[list[Tensor], Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, size, 8, generator=generator) for size in (5, 7, 7))
    return [q, k, v], torch.randn(2, 1, 5, 7, generator=generator) if mask else None


@pytest.mark.parametrize(("mask", "causal"), [(False, False), (True, False), (False, True)])
def test_it_equals_the_cpus_own_op(mask: bool, causal: bool) -> None:
    given, bias = operands(mask)
    options = {"attn_mask": bias, "scale": 0.3}
    out, sums = kernel(FLASH)(*given, 0.0, causal, **options)
    found, _ = attention(*given, 0.0, causal, **options)
    torch.testing.assert_close(found, out)
    grad = torch.ones_like(out)
    expected = kernel(FLASH_BACKWARD)(grad, *given, out, sums, 0.0, causal, **options)
    for gradient, other in zip(
        attention_backward(grad, *given, out, sums, 0.0, causal, **options), expected, strict=True
    ):
        torch.testing.assert_close(gradient, other)
