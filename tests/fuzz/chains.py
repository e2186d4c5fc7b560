"""Random chains of ops along a dimension: convolutions, pooling, slices, pads, rolls, flips."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

LONGEST = 200
Weights = Mapping[str, Tensor]
"""`b`, and kernels of 2 channels by their length: `1`, `2`, ..."""


def chain(dice: random.Random, x: Tensor, weights: Weights) -> Tensor:
    """Applies a few ops along the last dimension of (batch, 2, length)."""
    for _ in range(dice.randint(1, 4)):
        op = dice.choice(OPS)
        found = op(_Draw(dice, x, weights))
        if 0 < found.shape[-1] <= LONGEST:
            x = found
    return x


class _Draw:
    """What an op is applied to, and numbers that fit."""

    def __init__(self, dice: random.Random, x: Tensor, weights: Weights) -> None:
        self.dice, self.x = dice, x
        self.size = x.shape[-1]
        self.kernel = dice.randint(1, min(5, self.size))
        self.stride = dice.randint(1, 3)
        self.padding = dice.randint(0, self.kernel // 2)
        self.weight = weights[str(self.kernel)]
        self.bias = weights["b"] if dice.random() < 0.5 else None

    def upto(self, most: int) -> int:
        return self.dice.randint(0, most)


def _convolution(d: _Draw) -> Tensor:
    return F.conv1d(d.x, d.weight, d.bias, d.stride, d.kernel + d.upto(3), 2)


def _transposed(d: _Draw) -> Tensor:
    more = d.upto(d.stride - 1)
    return F.conv_transpose1d(d.x, d.weight, d.bias, d.stride, d.padding, more)


def _max_pool(d: _Draw) -> Tensor:
    return F.max_pool1d(d.x, d.kernel, d.stride, d.padding, ceil_mode=bool(d.upto(1)))


def _avg_pool(d: _Draw) -> Tensor:
    flags = bool(d.upto(1)), bool(d.upto(1))
    return F.avg_pool1d(d.x, d.kernel, d.stride, d.padding, *flags)


def _zeros(d: _Draw) -> Tensor:
    cut = min(2, (d.size - 1) // 2)
    return F.pad(d.x, (d.upto(9) - cut, d.upto(9) - cut))


def _reflected(d: _Draw) -> Tensor:
    return F.pad(d.x, (d.upto(d.size - 1), d.upto(d.size - 1)), mode="reflect")


def _replicated(d: _Draw) -> Tensor:
    return F.pad(d.x, (d.upto(7), d.upto(7)), mode="replicate")


def _roll(d: _Draw) -> Tensor:
    return d.x.roll(d.upto(18) - 9, 2)


def _flip(d: _Draw) -> Tensor:
    return d.x.flip(2)


def _slice(d: _Draw) -> Tensor:
    first = d.upto(d.size - 1)
    return d.x[:, :, first : d.size - d.upto(3) : d.stride]


def _joined(d: _Draw) -> Tensor:
    return torch.cat([d.x, d.x.flip(2), d.x[:, :, : d.kernel]], 2)


def _unfolded(d: _Draw) -> Tensor:
    return d.x.unfold(2, d.kernel, d.stride).sum(-1)


def _written(d: _Draw) -> Tensor:
    first = d.upto(d.size - d.kernel)
    last = first + d.kernel
    return torch.slice_scatter(d.x, d.x[:, :, first:last] * 2, 2, first, last)


OPS: tuple[Callable[[_Draw], Tensor], ...] = (
    _convolution,
    _transposed,
    _max_pool,
    _avg_pool,
    _zeros,
    _reflected,
    _replicated,
    _roll,
    _flip,
    _slice,
    _joined,
    _unfolded,
    _written,
)
