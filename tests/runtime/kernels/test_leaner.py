"""Kernels that take less memory than torch's compute the same to the bit."""

from __future__ import annotations

import math

import pytest
import torch

from autopar.cost.memory.kernel_results import effect
from autopar.ir.memory.strides import Placed
from autopar.ir.ops.shape.strided import MASK_AT_ONCE
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


@pytest.mark.parametrize("shape", [(3, MASK_AT_ONCE), (5, 40_001), (MASK_AT_ONCE + 1,)])
def test_the_gradient_of_dropout_in_pieces(shape: tuple[int, ...]) -> None:
    gradient, mask = torch.randn(shape), torch.rand(shape) > 0.3
    (kind,) = LEANER
    gradient.view(-1)[0] = math.inf
    expected = torch.ops.aten.native_dropout_backward(gradient, mask, 1 / 0.7)
    torch.testing.assert_close(
        kernel(kind)(gradient, mask, 1 / 0.7), expected, rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("shape", [(7, 33), (300, 1000)])
def test_memory_is_as_predicted(shape: tuple[int, int], is_transposed: bool) -> None:
    """The allocator sees what is predicted, and less than of torch's own kernel."""
    tensors = torch.randn(shape), torch.rand(shape) > 0.3
    gradient, mask = (each.t() if is_transposed else each for each in tensors)
    (kind,) = LEANER
    operands = tuple(
        Placed(tuple(each.shape), each.stride(), each.itemsize) for each in (gradient, mask)
    )
    made = effect(kind, (), operands, (tuple(gradient.shape),))
    with torch.profiler.profile(profile_memory=True) as seen:
        kernel(kind)(gradient, mask, 1 / 0.7)
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    small = 64  # the scale as a tensor
    predicted = gradient.nbytes + made.temporary_bytes
    assert predicted <= most <= predicted + small
