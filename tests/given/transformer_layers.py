"""Transformer layers as they are found in the wild: the ways to take query, key and value apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Parts = tuple[Tensor, Tensor, Tensor]
"""Query, key and value as [batch, heads, sequence, head size]."""


class Layer(nn.Module):
    """A pre-norm layer: attention and a perceptron, each behind a residual connection.

    Args:
        variant: A key of `FUSED`, or `separate`.
        size: Width of the layer.
        heads: How many query heads.
        kv_heads: How many heads of key and value; as many as of the query by default.
        explicit: Whether attention is written as products and a softmax.
        gqa: How heads of key and value serve several of the query: `interleave`, `expand`, or
            `enable` (the fused op does it).
        norm: `layer` or `rms`.
        gated: Whether the perceptron has a gate, as Llama's; `fused` for one weight with `up`.
        bias: Whether linear layers have a bias.
        causal: Whether a position sees only those before it.
    """

    def __init__(
        self,
        variant: str = "split",
        size: int = 96,
        heads: int = 12,
        kv_heads: int = 0,
        *,
        explicit: bool = False,
        gqa: str = "interleave",
        norm: str = "layer",
        gated: bool | str = False,
        bias: bool = True,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.variant, self.heads, self.kv_heads = variant, heads, kv_heads or heads
        self.head = size // heads
        self.explicit, self.gqa, self.causal = explicit, gqa, causal
        narrow = self.kv_heads * self.head
        if variant == "separate":
            self.q = nn.Linear(size, size, bias=bias)
            self.k = nn.Linear(size, narrow, bias=bias)
            self.v = nn.Linear(size, narrow, bias=bias)
        else:
            self.qkv = nn.Linear(size, size + 2 * narrow, bias=bias)
        self.out = nn.Linear(size, size, bias=bias)
        self.fused_gate = gated == "fused"
        self.up = nn.Linear(size, (8 if self.fused_gate else 4) * size, bias=bias)
        self.gate = nn.Linear(size, 4 * size, bias=bias) if gated is True else None
        self.down = nn.Linear(4 * size, size, bias=bias)
        kind = nn.LayerNorm if norm == "layer" else nn.RMSNorm
        self.norm1, self.norm2 = kind(size), kind(size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(self.wide(y))

    def wide(self, y: Tensor) -> Tensor:
        if self.fused_gate:
            gate, up = self.up(y).chunk(2, -1)
            return F.silu(gate) * up
        return F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        repeats = self.heads // self.kv_heads
        enable = self.gqa == "enable" and repeats > 1 and not self.explicit
        if repeats > 1 and not enable:
            k, v = (repeated(t, repeats, self.gqa) for t in (k, v))
        if self.explicit:
            y = explicit_attention(q, k, v, causal=self.causal)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=enable)
        return self.out(y.transpose(1, 2).reshape(x.shape))

    def parts(self, x: Tensor) -> Parts:
        if self.variant == "separate":
            q, k, v = (
                _heads(y, n)
                for y, n in (
                    (self.q(x), self.heads),
                    (self.k(x), self.kv_heads),
                    (self.v(x), self.kv_heads),
                )
            )
            return q, k, v
        if self.kv_heads != self.heads:
            return FUSED_GROUPED[self.variant](self.qkv(x), self.heads, self.kv_heads)
        return FUSED[self.variant](self.qkv(x), self.heads)


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def repeated(x: Tensor, times: int, how: str) -> Tensor:
    """Repeats each head of [b, h, s, d] `times` times."""
    if how == "interleave":
        return x.repeat_interleave(times, dim=1)
    b, h, s, d = x.shape
    return x[:, :, None].expand(b, h, times, s, d).reshape(b, h * times, s, d)


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if causal:
        length = scores.shape[-1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


def by_split(y: Tensor, heads: int) -> Parts:
    """GPT-2: columns are (q k v) (heads) (head size)."""
    q, k, v = (_heads(part, heads) for part in y.split(y.shape[-1] // 3, -1))
    return q, k, v


def by_chunk(y: Tensor, heads: int) -> Parts:
    q, k, v = (_heads(part, heads) for part in y.chunk(3, -1))
    return q, k, v


def by_unbind(y: Tensor, heads: int) -> Parts:
    """ViT: view, permute, unbind."""
    b, s, _ = y.shape
    q, k, v = y.view(b, s, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def by_select(y: Tensor, heads: int) -> Parts:
    b, s, _ = y.shape
    y = y.view(b, s, 3, heads, -1).permute(2, 0, 3, 1, 4)
    return y[0], y[1], y[2]


def by_slice(y: Tensor, heads: int) -> Parts:
    d = y.shape[-1] // 3
    return (
        _heads(y[..., :d], heads),
        _heads(y[..., d : 2 * d], heads),
        _heads(y[..., 2 * d :], heads),
    )


def interleaved(y: Tensor, heads: int) -> Parts:
    """Megatron: columns are (heads) (q k v) (head size)."""
    b, s, _ = y.shape
    q, k, v = y.view(b, s, heads, -1).transpose(1, 2).chunk(3, -1)
    return q, k, v


def interleaved_view(y: Tensor, heads: int) -> Parts:
    """GPT-NeoX: columns are (heads) (q k v) (head size), taken apart by a view."""
    b, s, _ = y.shape
    q, k, v = y.view(b, s, heads, 3, -1).permute(3, 0, 2, 1, 4).unbind(0)
    return q, k, v


def grouped_split(y: Tensor, heads: int, kv_heads: int) -> Parts:
    """Columns are all query heads, then all of the key, then all of the value."""
    head = y.shape[-1] // (heads + 2 * kv_heads)
    q, k, v = y.split([heads * head, kv_heads * head, kv_heads * head], -1)
    return _heads(q, heads), _heads(k, kv_heads), _heads(v, kv_heads)


def grouped_slice(y: Tensor, heads: int, kv_heads: int) -> Parts:
    """Phi-3: the same, by slices."""
    head = y.shape[-1] // (heads + 2 * kv_heads)
    first, second = heads * head, (heads + kv_heads) * head
    return (
        _heads(y[..., :first], heads),
        _heads(y[..., first:second], kv_heads),
        _heads(y[..., second:], kv_heads),
    )


def grouped_heads(y: Tensor, heads: int, kv_heads: int) -> Parts:
    """The same, cut where the columns are heads already."""
    b, s, _ = y.shape
    y = y.view(b, s, heads + 2 * kv_heads, -1).transpose(1, 2)
    q, k, v = y.split([heads, kv_heads, kv_heads], 1)
    return q, k, v


def grouped_nested(y: Tensor, heads: int, kv_heads: int) -> Parts:
    """The query first, then key and value from the rest."""
    head = y.shape[-1] // (heads + 2 * kv_heads)
    q, kv = y.split([heads * head, 2 * kv_heads * head], -1)
    k, v = kv.chunk(2, -1)
    return _heads(q, heads), _heads(k, kv_heads), _heads(v, kv_heads)


def grouped_interleaved(y: Tensor, heads: int, kv_heads: int) -> Parts:
    """Falcon: columns are (groups) (queries of the group, key, value) (head size)."""
    b, s, _ = y.shape
    repeats = heads // kv_heads
    y = y.view(b, s, kv_heads, repeats + 2, -1)
    q, k, v = y.split([repeats, 1, 1], 3)
    q = q.reshape(b, s, heads, -1).transpose(1, 2)
    return q, k.squeeze(3).transpose(1, 2), v.squeeze(3).transpose(1, 2)


FUSED: Mapping[str, Callable[[Tensor, int], Parts]] = {
    "split": by_split,
    "chunk": by_chunk,
    "unbind": by_unbind,
    "select": by_select,
    "slice": by_slice,
    "interleaved": interleaved,
    "interleaved_view": interleaved_view,
}
"""Ways to take a fused projection apart."""

FUSED_GROUPED: Mapping[str, Callable[[Tensor, int, int], Parts]] = {
    "split": grouped_split,
    "slice": grouped_slice,
    "heads": grouped_heads,
    "nested": grouped_nested,
    "interleaved": grouped_interleaved,
}
"""The same where several query heads share one of key and value."""
