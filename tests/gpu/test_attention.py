"""Attention on the device: by the kernel that is meant for it, and as the CPU's own computes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.ir.devices import CPU
from autopar.ir.ops.products.attention_kernels import (
    BY_DEFINITION,
    EFFICIENT_KERNEL,
    FLASH_KERNEL,
)
from tests.gpu.places import ON_GPU, PLACE
from tests.runtime.kernels.test_fused_attention import CASES, TOLERANCES, Case, both

OPS = {
    "_scaled_dot_product_flash_attention_for_cpu": CPU,
    "_scaled_dot_product_flash_attention": FLASH_KERNEL,
    "_scaled_dot_product_efficient_attention": EFFICIENT_KERNEL,
}
KERNELS = {f"{op}{end}": name for op, name in OPS.items() for end in ("", "_backward")}


class Called(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which kernels of attention run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.kernels += [KERNELS[name]] if name in KERNELS else []
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_that_is_meant_computes_what_the_cpus_does(case: Case) -> None:
    given, mask = case.operands()
    grad = torch.randn(2, case.heads[0], case.length, case.size).to(case.dtype)
    expected = both(grad, given, mask, case)
    there = [each.to(PLACE) for each in given]
    with Called() as called:
        found = both(grad.to(PLACE), there, _moved(mask), case)
    by_definition = case.kernel == BY_DEFINITION
    if ON_GPU:
        assert called.kernels == ([] if by_definition else [case.kernel] * 2)
    else:
        assert set(called.kernels) <= {CPU}
    for at, (result, whole) in enumerate(zip(found, expected, strict=True)):
        if at != 1 or not by_definition:  # Nobody reads sums then.
            assert result.device == PLACE
            atol = TOLERANCES[case.dtype] * float(whole.abs().max())
            torch.testing.assert_close(result.cpu(), whole, rtol=0, atol=atol)


def _moved(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.to(PLACE)
