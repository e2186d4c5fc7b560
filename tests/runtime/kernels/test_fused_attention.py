"""Attention by the kernels of GPUs, which are played here, equals the CPU's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.ops.products.attention_kernels import BY_DEFINITION, gpu_kernel
from autopar.runtime.kernels import fused_attention
from autopar.runtime.kernels.fused_attention import attention, attention_backward
from tests.runtime.kernels.strict_gpu import INFINITY, StrictGpu

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
TOLERANCES = {BF16: 3e-2, F16: 4e-3, F32: 1e-5, F64: 1e-12}


@dataclass(frozen=True)
class Case:
    """An attention.

    Attributes:
        kernel: What computes it on a GPU.
        dtype: Of everything.
        heads: Of queries, and of keys.
        length, keys: How many queries and keys.
        size: Of heads.
        causal: Whether queries don't see what is behind them.
        mask: The shape of a mask, if there is one.
        blind: Whether the first query sees no key.
        apart: How operands lie: dense, `sliced` out of wider ones, or with their heads `last`.
    """

    kernel: str
    dtype: torch.dtype = F32
    heads: tuple[int, int] = (4, 4)
    length: int = 5
    keys: int = 7
    size: int = 8
    causal: bool = False
    mask: tuple[int, ...] = ()
    blind: bool = False
    apart: str = ""

    def operands(self) -> tuple[list[Tensor], Tensor | None]:
        """Returns queries, keys and values, and the mask."""
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(self.dtype)

        sizes = [(self.heads[0], self.length), *[(self.heads[1], self.keys)] * 2]
        given = [self._placed(random(2, heads, count, self.size)) for heads, count in sizes]
        mask = random(*self.mask) if self.mask else None
        if mask is not None and self.blind:
            mask[..., 0, :] = -INFINITY
        return given, mask

    def _placed(self, x: Tensor) -> Tensor:
        if self.apart == "sliced":
            return torch.cat([x[..., :3], x], -1)[..., 3:]
        return x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1) if self.apart else x


CASES = [
    *(Case("flash", dtype, keys=5, causal=causal) for dtype in (BF16, F16) for causal in (0, 1)),
    Case("flash", BF16, heads=(6, 2)),
    Case("flash", BF16, heads=(6, 2), size=5, apart="sliced"),
    Case("flash", F16, size=12, apart="last"),
    Case("flash", BF16, keys=5, size=256, causal=True),
    Case("efficient", BF16, causal=True),
    Case("efficient", F16, keys=5, size=264, causal=True),
    Case("efficient", BF16, mask=(5, 7)),
    Case("efficient", BF16, keys=16, mask=(2, 1, 5, 16)),
    Case("efficient", F32),
    Case("efficient", F32, causal=True),
    Case("efficient", F32, keys=5, causal=True, length=40),
    Case("efficient", F32, heads=(6, 2), causal=True),
    Case("efficient", F32, heads=(6, 3), mask=(2, 6, 5, 7)),
    Case("efficient", F32, heads=(6, 3), size=6, apart="sliced"),
    Case("efficient", F32, size=12, apart="last", mask=(2, 1, 1, 7)),
    Case("efficient", F32, mask=(2, 4, 5, 1)),
    Case("efficient", F32, mask=(5, 7), blind=True),
    Case("efficient", F32, heads=(4, 2), mask=(2, 1, 5, 7), blind=True),
    Case("efficient", F32, mask=(2, 4, 5, 7), causal=True),
    Case(BY_DEFINITION, F64, causal=True),
    Case(BY_DEFINITION, F64, heads=(6, 2), mask=(5, 7)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_of_gpus_compute_what_the_cpus_do(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, mask = case.operands()
    grad = torch.randn(2, case.heads[0], case.length, case.size).to(case.dtype)
    expected = both(grad, given, mask, case)
    gpu = StrictGpu()
    monkeypatch.setattr(fused_attention, "aten", gpu)
    monkeypatch.setattr(fused_attention, "chosen", chosen_on_gpus)
    found = both(grad, given, mask, case)
    assert gpu.called == [case.kernel] * (0 if case.kernel == BY_DEFINITION else 2)
    for at, (result, whole) in enumerate(zip(found, expected, strict=True)):
        if at != 1 or case.kernel != BY_DEFINITION:  # Nobody reads sums then.
            assert result.dtype == whole.dtype
            atol = TOLERANCES[case.dtype] * float(whole.abs().max())
            torch.testing.assert_close(result, whole, rtol=0, atol=atol)


def both(grad: Tensor, given: list[Tensor], mask: Tensor | None, case: Case) -> tuple[Tensor, ...]:
    """Returns an attention with its sums, and its gradients."""
    options: dict[str, Any] = {"attn_mask": mask}
    out, sums = attention(*given, 0.0, case.causal, **options)
    return out, sums, *attention_backward(grad, *given, out, sums, 0.0, case.causal, **options)


def chosen_on_gpus(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> str:
    """Returns the kernel that a GPU would compute a call with."""
    shapes = (tuple(each.shape) for each in (query, key, value))
    return gpu_kernel(query.itemsize, *shapes, masked=mask is not None, causal=causal)


def test_nothing_is_dropped() -> None:
    query = torch.ones(1, 1, 2, 4)
    with pytest.raises(InvalidInputError, match=r"dropout_p is 0.1: kernels draw bits of their"):
        attention(query, query, query, 0.1)
