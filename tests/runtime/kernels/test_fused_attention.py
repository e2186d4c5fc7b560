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
from autopar.runtime.kernels.seen_keys import Attended
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
        first: The number of the first query.
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
    first: int = 0

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
    Case("flash", BF16, causal=True, first=2),
    Case("flash", BF16, length=2, keys=9, causal=True, first=3),
    Case("flash", BF16, heads=(4, 2), length=9, keys=4, causal=True, first=-5),
    Case("flash", F16, length=9, keys=4, causal=True, first=-7),
    Case("efficient", BF16, length=9, causal=True),
    Case("efficient", BF16, length=9, causal=True, first=2),
    Case("efficient", F32, causal=True, first=2),
    Case("efficient", F32, length=2, keys=9, causal=True, first=3, mask=(2, 1, 2, 9)),
    Case("efficient", F32, heads=(4, 2), length=9, keys=4, causal=True, first=-7),
    Case("efficient", F32, length=9, keys=4, causal=True, first=-3, mask=(9, 4)),
    Case(BY_DEFINITION, F32, length=3, keys=4, causal=True, first=-3),
    Case(BY_DEFINITION, F64, length=3, causal=True, first=3),
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
    options: dict[str, Any] = {"attn_mask": mask, "first": case.first}
    out, sums = attention(*given, 0.0, case.causal, **options)
    return out, sums, *attention_backward(grad, *given, out, sums, 0.0, case.causal, **options)


def chosen_on_gpus(call: Attended) -> str:
    """Returns the kernel that a GPU would compute a call with."""
    shapes = (tuple(each.shape) for each in call[:3])
    if any(0 in each.shape for each in call[:3]):
        return BY_DEFINITION
    first = call.first if call.causal else None
    return gpu_kernel(call.query.itemsize, *shapes, masked=call.mask is not None, first=first)


def test_nothing_is_dropped() -> None:
    query = torch.ones(1, 1, 2, 4)
    with pytest.raises(InvalidInputError, match=r"dropout_p is 0.1: kernels draw bits of their"):
        attention(query, query, query, 0.1)


@pytest.mark.parametrize("first", range(-6, 8))
@pytest.mark.parametrize("masked", [False, True])
def test_queries_of_a_part_see_what_they_see_in_the_whole(first: int, masked: bool) -> None:
    """Of gradients, sums are over all keys, so a part of the keys is as good."""
    case = Case("", F64, length=12, keys=12, causal=True, mask=(2, 4, 12, 12) if masked else ())
    (query, key, value), mask = case.operands()
    out, sums = attention(query, key, value, 0.0, True, attn_mask=mask)
    grad = torch.randn(out.shape, dtype=F64)
    rows, keys = slice(max(0, first), max(0, first) + 4), slice(max(0, -first), max(0, -first) + 5)
    part = None if mask is None else mask[:, :, rows]
    given = [x[:, :, rows] for x in (grad, query)], [x[:, :, keys] for x in (key, value)]
    if first >= 0:
        found = attention(query[:, :, rows], key, value, 0.0, True, attn_mask=part, first=first)
        torch.testing.assert_close(found, (out[:, :, rows], sums[:, :, rows]))
    options = {"attn_mask": None if part is None else part[..., keys], "first": first}
    saved = out[:, :, rows], sums[:, :, rows]
    gradients = attention_backward(*given[0], *given[1], *saved, 0.0, True, **options)
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    scores = (scores if mask is None else scores + mask).masked_fill(
        torch.ones(12, 12, dtype=torch.bool).triu(1), -INFINITY
    )
    weights = (scores - sums[..., None]).exp()[:, :, rows, keys]
    d_rows = (grad * out).sum(-1, keepdim=True)[:, :, rows]
    d_scores = weights * (given[0][0] @ given[1][1].transpose(-2, -1) - d_rows)
    d_scores = d_scores * query.shape[-1] ** -0.5
    d_key, d_value = (x.transpose(-2, -1) for x in (d_scores, weights))
    expected = d_scores @ given[1][0], d_key @ given[0][1], d_value @ given[0][0]
    torch.testing.assert_close(gradients, expected)
