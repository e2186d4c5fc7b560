"""Kernels that take less memory than torch's compute the same to the bit."""

from __future__ import annotations

import pytest
import torch

from autopar.runtime.kernels.leaner import LEANER
from autopar.runtime.kernels.table import kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_gradient_of_dropout(dtype: torch.dtype) -> None:
    gradient, mask = torch.randn(7, 33).to(dtype), torch.rand(7, 33) > 0.3
    (kind,) = LEANER
    expected = torch.ops.aten.native_dropout_backward(gradient.t(), mask.t(), 1 / 0.7)
    found = kernel(kind)(gradient.t(), mask.t(), 1 / 0.7)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
