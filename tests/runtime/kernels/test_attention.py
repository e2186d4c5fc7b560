"""Attention as other devices compute it equals the CPU's own op."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from autopar.ir.ops.products.attention import FLASH
from autopar.ir.ops.products.attention_backward import FLASH_BACKWARD
from autopar.runtime.kernels.attention import attention, attention_backward
from autopar.runtime.kernels.table import kernel


def operands(mask: bool) -> tuple[list[Tensor], Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, size, 8, generator=generator) for size in (5, 7, 7))
    return [q, k, v], torch.randn(2, 1, 5, 7, generator=generator) if mask else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
def test_without_a_key_it_is_what_pytorch_computes(
    dtype: torch.dtype, causal: bool, heads: int
) -> None:
    query = torch.ones(2, 4, 5, 8, dtype=dtype, requires_grad=True)
    key, value = (torch.ones(2, heads, 0, 8, dtype=dtype, requires_grad=True) for _ in range(2))
    wanted = scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    wanted.sum().backward()
    with torch.no_grad():
        out, sums = kernel(FLASH)(query, key, value, is_causal=causal)
        grad = torch.ones_like(out)
        found = kernel(FLASH_BACKWARD)(grad, query, key, value, out, sums, 0.0, causal)
    torch.testing.assert_close(out, wanted)
    assert sums.shape == (2, 4, 5)
    for gradient, operand in zip(found, (query, key, value), strict=True):
        torch.testing.assert_close(gradient, operand.grad)


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
