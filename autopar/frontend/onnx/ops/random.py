"""Operators that draw random numbers. The lowering makes them depend on the program's seed."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autopar.frontend.onnx.trace.node import Node, Refused
from autopar.frontend.onnx.trace.values import Translation


def _random_normal(node: Node) -> torch.Tensor:
    return _normal(node, _shape(node), node.dtype("dtype"))


def _random_normal_like(node: Node, x: torch.Tensor) -> torch.Tensor:
    return _normal(node, list(x.shape), _dtype_like(node, x))


def _random_uniform(node: Node) -> torch.Tensor:
    return _uniform(node, _shape(node), node.dtype("dtype"))


def _random_uniform_like(node: Node, x: torch.Tensor) -> torch.Tensor:
    return _uniform(node, list(x.shape), _dtype_like(node, x))


def _bernoulli(node: Node, x: torch.Tensor) -> torch.Tensor:
    # The body that onnx gives it draws a one where the random number is the larger one.
    return torch.bernoulli(x).to(_dtype_like(node, x))


def _multinomial(node: Node, x: torch.Tensor) -> torch.Tensor:
    """The input is the logarithm of probabilities, up to a constant per row."""
    count = node.integer("sample_size", 1)
    drawn = torch.multinomial(torch.softmax(x, -1), count, replacement=True)
    return drawn.to(node.dtype("dtype") if node.has("dtype") else torch.int32)


def _normal(node: Node, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    drawn = torch.randn(shape, dtype=dtype)
    mean, scale = node.number("mean", 0.0), node.number("scale", 1.0)
    return drawn if (mean, scale) == (0.0, 1.0) else drawn * scale + mean


def _uniform(node: Node, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    drawn = torch.rand(shape, dtype=dtype)
    low, high = node.number("low", 0.0), node.number("high", 1.0)
    return drawn if (low, high) == (0.0, 1.0) else drawn * (high - low) + low


def _shape(node: Node) -> list[int]:
    shape = node.integers("shape")
    if shape is None or any(size < 0 for size in shape):
        raise Refused(f"a shape of {shape}")
    return shape


def _dtype_like(node: Node, x: torch.Tensor) -> torch.dtype:
    return node.dtype("dtype") if node.has("dtype") else x.dtype


TABLE: Mapping[str, Translation] = {
    "Bernoulli": Translation(_bernoulli, draws=True),
    "Multinomial": Translation(_multinomial, draws=True),
    "RandomNormal": Translation(_random_normal, draws=True),
    "RandomNormalLike": Translation(_random_normal_like, shaped=(0,), draws=True),
    "RandomUniform": Translation(_random_uniform, draws=True),
    "RandomUniformLike": Translation(_random_uniform_like, shaped=(0,), draws=True),
}
