"""Samples of attention and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from autopar.ir.ops.products.attention import ATTENTION
from autopar.ir.ops.products.attention_backward import ATTENTION_BACKWARD
from tests.ops.sample import Sample, b, f, s

FLASH = "_scaled_dot_product_flash_attention_for_cpu"
INFINITY = float("inf")


def samples() -> Iterator[Sample]:
    """Yields samples of every op of the family."""
    q, k, v = f(2, 4, 5, 6), f(2, 4, 7, 6), f(2, 4, 7, 6, low=-1)
    few = f(2, 2, 7, 6), f(2, 2, 7, 6, low=-1)
    name = "scaled_dot_product_attention"
    yield s(name, q, k, v)
    yield s(name, q, k, f(2, 4, 7, 3))
    yield s(name, q, k, v, b(5, 7) | True)
    yield s(name, q, k, v, some_rows_masked())
    lowest = torch.finfo(q.dtype).min
    yield s(name, q, k, v, f(5, 7).masked_fill(~some_rows_masked(), lowest))
    yield s(name, q, k, v, f(2, 1, 5, 7))
    yield s(name, q, k, v, f(2, 4, 1, 7), scale=0.3)
    yield s(name, f(2, 5, 6), f(2, 5, 6), f(2, 5, 6), is_causal=True)
    yield s(name, f(5, 6), f(7, 6), f(7, 6), is_causal=True)
    yield s(name, f(2, 6, 5, 4), f(2, 3, 5, 4), f(2, 3, 5, 4), enable_gqa=True)
    yield s(name, f(6, 5, 4), f(1, 5, 4), f(1, 5, 4), enable_gqa=True, is_causal=True)
    half = torch.bfloat16
    yield s(name, q.to(half), k.to(half), v.to(half), is_causal=True)
    yield s("_scaled_dot_product_attention_math", q, k, v)
    yield s("_scaled_dot_product_attention_math", q, k, v, is_causal=True, scale=0.5)
    yield s("_scaled_dot_product_attention_math", q, *few, enable_gqa=True)
    yield from fused(q, k, v)
    yield from fused(q, k, v, attn_mask=f(1, 4, 5, 7))
    yield from fused(q, q, q, is_causal=True)
    yield from fused(q, *few, is_causal=True)
    blind = torch.zeros(5, 7).masked_fill(~some_rows_masked(), -INFINITY)
    yield from fused(q, *few, attn_mask=blind)
    own = Sample(ATTENTION, {"query": q, "key": k, "value": v, "is_causal": True})
    yield from (own, Sample(ATTENTION, {**own.args, "first": 2}))
    yield Sample(ATTENTION, {**own.args, "first": 1, "attn_mask": f(5, 7)})
    yield from gradients(q, k, v)
    yield from gradients(q, *few, is_causal=True)
    yield from gradients(q, *few, attn_mask=f(5, 7))


def fused(*given: Tensor, **options: Any) -> Iterator[Sample]:
    """Yields a sample of the CPU's attention, and the same one of that on any device."""
    sample = s(FLASH, *given, **options)
    yield from (sample, Sample(ATTENTION, sample.args))


def gradients(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Iterator[Sample]:
    """Yields a sample of the gradient of an attention."""
    out, lse = getattr(torch.ops.aten, FLASH)(q, k, v, **options)
    causal = options.pop("is_causal", False)
    grad = f(*out.shape, low=-1)
    sample = s(f"{FLASH}_backward", grad, q, k, v, out, lse, 0.0, causal, **options)
    yield from (sample, Sample(ATTENTION_BACKWARD, sample.args))
    if causal:
        yield Sample(ATTENTION_BACKWARD, {**sample.args, "first": 1})


def some_rows_masked() -> Tensor:
    """Returns a mask [5, 7] that leaves one query no key at all."""
    mask = b(5, 7)
    mask[0] = True
    mask[1] = False
    return mask
