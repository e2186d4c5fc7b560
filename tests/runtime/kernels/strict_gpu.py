"""Torch's attention on GPUs as it is specified: what it refuses, and what it returns.

Written from the checks and the formulas of torch's CUDA code. What is left open there is no number
here, so that who relies on it is found out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAN, INFINITY = float("nan"), float("inf")
HALVES = (torch.float16, torch.bfloat16)


class StrictGpu:
    """Stands for `torch.ops.aten` of a GPU; notes which kernels are called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def _scaled_dot_product_flash_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float,
        is_causal: bool,
        *,
        scale: float,
    ) -> tuple[Any, ...]:
        self.called.append("flash")
        check_flash(query, key, value)
        scores = masked_from_the_end(scores_of(query, key, scale), is_causal)
        out, sums = attended(scores, value)
        lengths = (query.shape[-2], key.shape[-2])
        return out.to(query.dtype), sums, None, None, *lengths, torch.tensor(0), None, None

    def _scaled_dot_product_flash_attention_backward(
        self,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        sums: Tensor,
        cum_seq_q: None,
        cum_seq_k: None,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        philox_seed: Tensor,
        philox_offset: Tensor,
        *,
        scale: float,
    ) -> tuple[Tensor, ...]:
        self.called.append("flash")
        check_flash(query, key, value)
        assert (max_q, max_k) == (query.shape[-2], key.shape[-2])
        assert sums.shape == query.shape[:-1]
        assert sums.is_contiguous()
        scores = masked_from_the_end(scores_of(query, key, scale), is_causal)
        return gradients(grad_out, query, key, value, out, scores, sums, scale)

    def _scaled_dot_product_efficient_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        compute_log_sumexp: bool,
        dropout_p: float,
        is_causal: bool,
        *,
        scale: float,
    ) -> tuple[Any, ...]:
        self.called.append("efficient")
        check_efficient(query, key, value, bias)
        scores = biased(scores_of(query, key, scale), bias, is_causal)
        out, sums = attended(scores, value)
        blind = scores.amax(-1) == -INFINITY
        out, sums = out.masked_fill(blind[..., None], NAN), sums.masked_fill(blind, NAN)
        extra = -sums.shape[-1] % 32
        sums = torch.nn.functional.pad(sums, (0, extra), value=INFINITY)
        by_length = out.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2)
        return by_length, sums, torch.tensor(0), torch.tensor(0)

    def _scaled_dot_product_efficient_attention_backward(
        self,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        out: Tensor,
        sums: Tensor,
        philox_seed: Tensor,
        philox_offset: Tensor,
        dropout_p: float,
        grad_input_mask: list[bool],
        is_causal: bool,
        *,
        scale: float,
    ) -> tuple[Any, ...]:
        self.called.append("efficient")
        check_efficient(query, key, value, bias)
        assert sums.shape[-1] % 32 == 0
        assert sums.is_contiguous()
        assert out.transpose(1, 2).is_contiguous(), "it is read as the kernel wrote it"
        length = query.shape[-2]
        assert (sums[..., length:] == INFINITY).all(), "rows that aren't there have weights"
        scores = biased(scores_of(query, key, scale), bias, is_causal)
        found = gradients(grad_out, query, key, value, out, scores, sums[..., :length], scale)
        return (*found, None)


def check_flash(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuses what the flash kernel refuses."""
    assert query.dtype in HALVES
    assert query.shape[-1] == key.shape[-1] == value.shape[-1] <= 256
    assert query.shape[1] % key.shape[1] == 0
    for each in (query, key, value):
        check_aligned(each)


def check_efficient(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> None:
    """Refuses what the efficient kernel refuses."""
    assert query.dtype in (*HALVES, torch.float32)
    assert query.shape[:2] == key.shape[:2] == value.shape[:2]
    for each in (query, key, value):
        check_aligned(each)
    if bias is not None:
        assert bias.dtype == query.dtype
        assert bias.shape == (*query.shape[:-1], key.shape[-2])
        check_aligned(bias, whole=False)


def check_aligned(x: Tensor, whole: bool = True) -> None:
    """Refuses rows that don't begin at multiples of 16 bytes, or whose elements lie apart."""
    step = 16 // x.itemsize
    assert x.stride(-1) == 1
    assert x.storage_offset() % step == 0
    assert all(stride % step == 0 for stride in x.stride()[:-1])
    assert not whole or x.shape[-1] % step == 0


def scores_of(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Returns the scaled products, of heads that may be shared."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    return query.float() @ key.float().transpose(-2, -1) * scale


def masked_from_the_end(scores: Tensor, causal: bool) -> Tensor:
    """Returns scores of which the last query sees all keys, as the flash kernel has it."""
    if not causal:
        return scores
    length, keys = scores.shape[-2:]
    seen = torch.ones(length, keys, dtype=torch.bool).tril(keys - length)
    return scores.masked_fill(~seen, -INFINITY)


def biased(scores: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    """Returns scores of which the first query sees one key, as the efficient kernel has it."""
    scores = scores if bias is None else scores + bias.float()
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~seen, -INFINITY) if causal else scores


def attended(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the weighted sums of values, and the logarithms of sums of exponentials."""
    value = value.repeat_interleave(scores.shape[1] // value.shape[1], 1)
    return scores.softmax(-1) @ value.float(), scores.logsumexp(-1)


def gradients(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    scores: Tensor,
    sums: Tensor,
    scale: float,
) -> tuple[Tensor, ...]:
    """Returns the gradients, with weights that are made of scores and the sums alone."""
    shared = query.shape[1] // key.shape[1]
    wide = [each.float().repeat_interleave(shared, 1) for each in (key, value)]
    weights = (scores - sums[..., None]).exp()
    grad = grad_out.float()
    rows = (grad * out.float()).sum(-1, keepdim=True)
    d_scores = weights * (grad @ wide[1].transpose(-2, -1) - rows) * scale
    d_key, d_value = d_scores.transpose(-2, -1) @ query.float(), weights.transpose(-2, -1) @ grad
    by_head = (key.shape[0], key.shape[1], shared, key.shape[2], -1)
    found = (d_scores @ wide[0], *(each.reshape(by_head).sum(2) for each in (d_key, d_value)))
    return tuple(each.to(query.dtype) for each in found)
