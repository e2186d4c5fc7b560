"""Small models of kinds that the zoo lacks, each with a batch to train on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.models import Example


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _whole(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


def _example(model: nn.Module, batch: Any, loss: Callable[..., Tensor]) -> Example:
    return Example(model, lambda number: batch, loss)


def _tokens_loss(found: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(found.flatten(0, -2), target.flatten())


class ConvNet(nn.Module):
    """Depthwise and grouped convolutions with batch norm, squeezed and pooled."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.deep = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.wide = nn.Conv2d(width, 2 * width, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (width, width, 2 * width))
        self.squeeze, self.expand = nn.Linear(2 * width, 4), nn.Linear(4, 2 * width)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip((self.stem, self.deep, self.wide), self.norms, strict=True):
            x = F.hardswish(norm(layer(x)))
        x = F.max_pool2d(x, 3, 2, 1)
        weights = self.expand(F.relu(self.squeeze(x.mean((2, 3))))).sigmoid()
        found: Tensor = self.head((x * weights[..., None, None]).mean((2, 3)))
        return found


class Block(nn.Module):
    """Group norm, SiLU and convolution, twice, beside a shortcut."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(4, inner), nn.GroupNorm(4, outer)))
        self.convs = nn.ModuleList(
            (nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1))
        )
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        found = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            found = conv(F.silu(norm(found)))
        total: Tensor = found + self.skip(x)
        return total


class Diffusion(nn.Module):
    """A U-Net of a diffusion model: time embedding, attention at the bottom, up by nearest."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.down, self.low = Block(width, width), Block(width, 2 * width)
        self.stride = nn.Conv2d(width, width, 3, 2, 1)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = Block(3 * width, width)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        rates = torch.exp(-torch.arange(8) / 8.0)
        angles = step[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        high = self.down(self.first(x) + time[..., None, None])
        low = self.low(self.stride(high))
        rows = low.flatten(2).transpose(1, 2)
        rows = rows + self.attention(rows, rows, rows, need_weights=False)[0]
        low = rows.transpose(1, 2).reshape(low.shape)
        wide = F.interpolate(low, scale_factor=2.0, mode="nearest")
        found: Tensor = self.last(self.up(torch.cat([wide, high], 1)))
        return found


class UNet(nn.Module):
    """A U-Net for segmentation: batch norm, transposed convolution, bilinear interpolation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def double(inner: int, outer: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)
            )

        self.a, self.b, self.c = double(3, width), double(width, 2 * width), double(2 * width, 32)
        self.up = nn.ConvTranspose2d(32, 2 * width, 2, 2)
        self.d, self.e = double(4 * width, 2 * width), double(3 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        wide = self.d(torch.cat([self.up(c), b], 1))
        wide = F.interpolate(wide, scale_factor=2, mode="bilinear", align_corners=False)
        found: Tensor = self.out(self.e(torch.cat([wide, a], 1)))
        return found


class LanguageModel(nn.Module):
    """An LSTM over embedded tokens."""

    def __init__(self, words: int = 60, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm(self.embed(ids))[0])
        return found


class Recommender(nn.Module):
    """Bags of embeddings and dense features, combined by their products: as DLRM does."""

    def __init__(self, rows: int = 500, width: int = 16, tables: int = 3) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode=mode) for mode in ("sum", "mean", "sum")[:tables]
        )
        self.dense = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, *bags: Tensor) -> Tensor:
        first = self.dense(dense)
        rows = [table(ids) for table, ids in zip(self.tables, bags, strict=True)]
        features = torch.stack([first, *rows], 1)
        products = features @ features.transpose(1, 2)
        at = torch.tril_indices(len(rows) + 1, len(rows) + 1, offset=-1)
        found: Tensor = self.top(torch.cat([first, products[:, at[0], at[1]]], 1)).squeeze(-1)
        return found


class Graph(nn.Module):
    """Two layers of messages along edges, added up and taken the largest of by node."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        for layer, most in ((self.first, False), (self.second, True)):
            messages = F.relu(layer(torch.cat([x[source], x[target]], -1)))
            if most:
                at = target[:, None].expand_as(messages)
                x = torch.zeros_like(x).scatter_reduce(0, at, messages, "amax")
            else:
                total = torch.zeros_like(x).index_add(0, target, messages)
                degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
                x = total / degree.clamp(min=1)[:, None]
        found: Tensor = self.head(x)
        return found


class Windows(nn.Module):
    """Attention within windows with a bias of relative positions, as in SAM and Swin."""

    def __init__(self, width: int = 16, heads: int = 4, window: int = 4) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rows = nn.Parameter(torch.zeros(2 * window - 1, width // heads))
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        size = self.window
        more = (-h) % size
        padded = F.pad(self.norm(x), (0, 0, 0, more, 0, more))
        tall = h + more
        cut = padded.view(n, tall // size, size, tall // size, size, c).transpose(2, 3)
        rows = cut.reshape(-1, size * size, c)
        q, k, v = self.qkv(rows).view(-1, size * size, 3, self.heads, c // self.heads).unbind(2)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        at = torch.arange(size)
        relative = self.rows[at[:, None] - at[None, :] + size - 1]
        square = q.reshape(-1, self.heads, size, size, q.shape[-1])
        bias = torch.einsum("bnhwc,hkc->bnhwk", square, relative)
        scores = (q @ k.transpose(-1, -2)).view(-1, self.heads, size, size, size, size)
        scores = (scores + bias[..., None]).view(-1, self.heads, size * size, size * size)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, size, size, c)
        back = mixed.view(n, tall // size, tall // size, size, size, c).transpose(2, 3)
        x = x + self.out(back.reshape(n, tall, tall, c)[:, :h, :w])
        x = x + self.mlp(self.norm(x))
        found: Tensor = self.head(x.mean((1, 2)))
        return found


MORE: Mapping[str, Callable[[], Example]] = {
    "convnet": lambda: _example(
        ConvNet(), ((_normal(4, 3, 32, 32),), _whole(10, 4)), F.cross_entropy
    ),
    "unet": lambda: _example(
        UNet(), ((_normal(2, 3, 32, 32),), _whole(2, 2, 32, 32)), F.cross_entropy
    ),
    "diffusion": lambda: _example(
        Diffusion(), ((_normal(2, 3, 16, 16), _normal(2)), _normal(2, 3, 16, 16)), F.mse_loss
    ),
    "lstm": lambda: _example(
        LanguageModel(), ((_whole(60, 6, 12),), _whole(60, 6, 12)), _tokens_loss
    ),
    "recommender": lambda: _example(
        Recommender(),
        ((_normal(12, 13), *(_whole(500, 12, 5),) * 3), torch.ones(12)),
        F.binary_cross_entropy_with_logits,
    ),
    "graph": lambda: _example(
        Graph(), ((_normal(40, 16), _whole(40, 2, 150)), _whole(4, 40)), F.cross_entropy
    ),
    "windows": lambda: _example(
        Windows(), ((_normal(2, 3, 40, 40),), _whole(5, 2)), F.cross_entropy
    ),
}
"""What makes each, by name."""
