"""Products: calls of each family of ops that multiply and add, by classes of their shapes.

A class has about the same intensity whatever its size: products of matrices of which the smallest
dimension is given, attention of heads of one size, convolutions of so many channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from autopar.calibration.operands import Kernel, Maker, aten, size_of

Make = Callable[[Maker, int, int], Kernel]
"""Makes a call of a class, of about as many operations."""


@dataclass(frozen=True)
class Shapes:
    """How to measure a family of products.

    Attributes:
        make: Makes the calls.
        classes: Of their shapes.
    """

    make: Make
    classes: tuple[int, ...]


def _made(call: Callable[[], object], flops: float, *read: Tensor) -> Kernel:
    return Kernel(call, size_of(read, call()), flops)


def _product(make: Maker, least: int, flops: int) -> Kernel:
    other = max(1, round((flops / 2 / least) ** 0.5))
    size = min(least, round((flops / 2) ** (1 / 3)))
    other = max(other, size)
    a, b = make.floats(size, other), make.floats(other, other if size == least else size)
    return _made(lambda: a @ b, 2.0 * a.numel() * b.shape[1], a, b)


LENGTH = 256
"""Positions of a sequence, of batched products and attention."""


def _batched_product(make: Maker, width: int, flops: int) -> Kernel:
    count = max(1, round(flops / 2 / LENGTH**2 / width))
    length = LENGTH if count > 1 else max(8, round((flops / 2 / width) ** 0.5))
    a, b = make.floats(count, length, width), make.floats(count, width, length)
    return _made(lambda: torch.bmm(a, b), 2.0 * a.numel() * length, a, b)


def _heads(make: Maker, width: int, flops: int) -> tuple[list[Tensor], float]:
    """Returns queries, keys and values, and the operations of their attention."""
    count = max(1, round(flops / 4 / LENGTH**2 / width))
    length = LENGTH if count > 1 else max(8, round((flops / 4 / width) ** 0.5))
    shape = 1, count, length, width
    return [make.floats(*shape) for _ in range(3)], 4.0 * count * length**2 * width


def _attention(make: Maker, width: int, flops: int) -> Kernel:
    heads, work = _heads(make, width, flops)
    return _made(lambda: _attend(*heads), work, *heads)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value)


def _attention_backward(make: Maker, width: int, flops: int) -> Kernel:
    heads, work = _heads(make, width, flops * 2 // 5)
    leaves = [each.requires_grad_() for each in heads]
    out = _attend(*leaves)
    grad = torch.ones_like(out)

    def backward() -> object:
        return torch.autograd.grad(out, leaves, grad, retain_graph=True)

    return _made(backward, 2.5 * work, *heads, out, grad)


IMAGES = 4


@dataclass(frozen=True)
class Convolution:
    """A convolution of images, its weight, and how it is called.

    Attributes:
        window: Of the weight.
        depthwise: Whether each channel is one by itself.
    """

    window: int
    depthwise: bool = False

    def operands(self, make: Maker, channels: int, flops: int) -> tuple[Tensor, Tensor, float]:
        """Returns images, a weight, and the operations."""
        inputs = 1 if self.depthwise else channels
        each = 2.0 * IMAGES * channels * inputs * self.window**2
        side = max(self.window, round(math.sqrt(flops / each)))
        x = make.floats(IMAGES, channels, side, side)
        return x, make.floats(channels, inputs, self.window, self.window), each * side**2

    def forward(self, make: Maker, channels: int, flops: int) -> Kernel:
        """Returns a call of it."""
        x, weight, work = self.operands(make, channels, flops)
        padding, groups = self.window // 2, channels if self.depthwise else 1
        return _made(lambda: F.conv2d(x, weight, None, 1, padding, 1, groups), work, x, weight)

    def backward(self, make: Maker, channels: int, flops: int) -> Kernel:
        """Returns a call of its gradient."""
        x, weight, work = self.operands(make, channels, flops // 2)
        padding, groups = [self.window // 2] * 2, channels if self.depthwise else 1
        grad = torch.ones_like(x)

        def backward() -> object:
            return aten.convolution_backward.default(
                *(grad, x, weight, None, [1, 1], padding, [1, 1], False, [0, 0], groups),
                [True, True, False],
            )

        return _made(backward, 2 * work, grad, x, weight)


_CONVOLUTIONS: Mapping[str, tuple[Convolution, tuple[int, ...]]] = {
    "convolution": (Convolution(3), (4, 32, 128)),
    "pointwise_convolution": (Convolution(1), (16, 128)),
    "depthwise_convolution": (Convolution(3, depthwise=True), (32,)),
}

PRODUCTS: Mapping[str, Shapes] = {
    "product": Shapes(_product, (1, 16, 64, 512)),
    "batched_product": Shapes(_batched_product, (16, 64)),
    "attention": Shapes(_attention, (64,)),
    "attention_backward": Shapes(_attention_backward, (64,)),
    "narrow_attention": Shapes(_attention, (32,)),
    "narrow_attention_backward": Shapes(_attention_backward, (32,)),
    **{name: Shapes(each.forward, sizes) for name, (each, sizes) in _CONVOLUTIONS.items()},
    **{
        f"{name}_backward": Shapes(each.backward, sizes)
        for name, (each, sizes) in _CONVOLUTIONS.items()
    },
}
"""How to measure each family of products."""
