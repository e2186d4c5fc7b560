"""Products of 16-bit values are added to totals of 32 bits before they are rounded."""

from __future__ import annotations

import pytest
import torch

from autopar.runtime.kernels.products import add_product, add_product_


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(40, 8, 3), (3000, 5, 700), (1, 1, 1), (5, 0, 4), (0, 3, 4)])
def test_a_product_is_added(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    rows, inner, columns = shape
    total = torch.randn(rows, columns)
    left, right = torch.randn(inner, rows).to(dtype).t(), torch.randn(inner, columns).to(dtype)
    exact = total.double() + left.double() @ right.double()
    before = total.clone()
    torch.testing.assert_close(add_product(total, left, right).double(), exact, rtol=0, atol=1e-3)
    assert torch.equal(total, before)
    assert add_product_(total, left, right) is total
    torch.testing.assert_close(total.double(), exact, rtol=0, atol=1e-3)
