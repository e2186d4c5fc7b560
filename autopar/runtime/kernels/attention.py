"""Attention on devices other than the CPU, and of nothing.

Models are captured on the CPU, whose attention is an op of its own. Elsewhere it is computed by
`scaled_dot_product_attention`, which picks the device's best kernel. What kernels save for their
gradients differs from device to device, so the gradient is computed by definition. Both are how
attention without a key is computed on the CPU, too, whose own kernel divides by the number of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from autopar.ir.ops.products.attention import FLASH
from autopar.ir.ops.products.attention_backward import FLASH_BACKWARD


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the attention of queries [batch, heads, length, size], and what nobody reads then.

    The CPU's kernel returns logarithms of sums of exponentials [batch, heads, length] for its
    gradient; `attention_backward` does without.
    """
    out = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out, query.new_zeros(query.shape[:-1], dtype=accumulated(query.dtype))


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of scores, and of the logarithms of sums."""
    return torch.promote_types(dtype, torch.float32)


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of queries, keys and values.

    With P the softmax of the scores S = scale Q K^T, and D the sums of rows of dO * O:
    dV = P^T dO, dS = P * (dO V^T - D), dQ = scale dS K, dK = scale dS^T Q (Dao et al.,
    arXiv:2205.14135, appendix B.2). It holds the scores, so its memory grows with the square of
    the length.
    """
    del logsumexp, dropout_p  # The CPU's kernel is chosen only without dropout.
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    heads = key.shape[1]
    key, value = (for_each_query(each, query.shape[1] // heads) for each in (key, value))
    wide = accumulated(query.dtype)
    scores = (query @ key.transpose(-2, -1)).to(wide) * scale
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    weights = scores.softmax(-1)
    d_value = weights.to(query.dtype).transpose(-2, -1) @ grad_out
    d_weights = (grad_out @ value.transpose(-2, -1)).to(wide)
    d_rows = (grad_out.to(wide) * out.to(wide)).sum(-1, keepdim=True)
    d_scores = (weights * (d_weights - d_rows) * scale).to(query.dtype)
    d_key = d_scores.transpose(-2, -1) @ query
    return d_scores @ key, by_head(d_key, heads), by_head(d_value, heads)


def for_each_query(x: Tensor, queries: int) -> Tensor:
    """Returns keys or values [batch, heads, ...] once for each query that shares a head."""
    return x if queries == 1 else x.repeat_interleave(queries, 1)


def by_head(gradient: Tensor, heads: int) -> Tensor:
    """Returns the gradient of what is shared, of those for each query."""
    batch, queries, *rest = gradient.shape
    return gradient.reshape(batch, heads, queries // heads, *rest).sum(2)


ELSEWHERE: Mapping[str, Callable[..., Any]] = {FLASH: attention, FLASH_BACKWARD: attention_backward}
"""What computes an op of the CPU's own on other devices, and of nothing."""


def by_device(on_cpu: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel for operands on the CPU, of which none is empty, and for all others."""

    def computed(*args: Any, **kwargs: Any) -> Any:
        given = (each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
        is_own = all(each.is_cpu and each.numel() for each in given)
        return (on_cpu if is_own else elsewhere)(*args, **kwargs)

    return computed
