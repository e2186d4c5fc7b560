"""Activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from autopar.frontend.onnx.trace.node import Node
from autopar.frontend.onnx.trace.values import Translation

Function = Callable[[torch.Tensor, int], torch.Tensor]


def _relu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


def _leaky_relu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return F.leaky_relu(x, node.number("alpha", 0.01))


def _thresholded_relu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return F.threshold(x, node.number("alpha", 1.0), 0.0)


def _prelu(node: Node, x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, x * slope, x)


def _elu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return F.elu(x, node.number("alpha", 1.0))


def _celu(node: Node, x: torch.Tensor) -> torch.Tensor:
    # What torch's celu is. That has no kernel of its own, and would be taken apart.
    alpha = node.number("alpha", 1.0)
    result: torch.Tensor = torch.ops.aten.elu(x, alpha, 1.0, 1.0 / alpha)
    return result


def _selu(node: Node, x: torch.Tensor) -> torch.Tensor:
    alpha = node.number("alpha", 1.67326319217681884765625)
    gamma = node.number("gamma", 1.05070102214813232421875)
    return F.elu(x, alpha) * gamma


def _hard_sigmoid(node: Node, x: torch.Tensor) -> torch.Tensor:
    alpha, beta = node.number("alpha", 0.2), node.number("beta", 0.5)
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


def _hard_swish(node: Node, x: torch.Tensor) -> torch.Tensor:
    return F.hardswish(x)


def _gelu(node: Node, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh" if node.text("approximate") == "tanh" else "none")


def _swish(node: Node, x: torch.Tensor) -> torch.Tensor:
    alpha = node.number("alpha", 1.0)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(x * alpha)


def _mish(node: Node, x: torch.Tensor) -> torch.Tensor:
    return F.mish(x)


def _softplus(node: Node, x: torch.Tensor) -> torch.Tensor:
    return F.softplus(x)


def _sigmoid(node: Node, x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


def _softmax(node: Node, x: torch.Tensor) -> torch.Tensor:
    return _over_axis(node, x, torch.softmax)


def _log_softmax(node: Node, x: torch.Tensor) -> torch.Tensor:
    return _over_axis(node, x, torch.log_softmax)


def _hardmax(node: Node, x: torch.Tensor) -> torch.Tensor:
    def hardmax(rows: torch.Tensor, dim: int) -> torch.Tensor:
        first = rows.argmax(dim, keepdim=True)
        return torch.zeros_like(rows).scatter(dim, first, 1.0)

    return _over_axis(node, x, hardmax)


def _over_axis(node: Node, x: torch.Tensor, function: Function) -> torch.Tensor:
    """Applies a function along an axis; before opset 13, along all axes from that one on."""
    if node.opset >= 13:
        return function(x, node.integer("axis", -1))
    axis = node.integer("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    if axis == x.ndim - 1:
        return function(x, axis)
    return function(x.flatten(axis), axis).reshape(x.shape)


TABLE: Mapping[str, Translation] = {
    "Celu": Translation(_celu),
    "Elu": Translation(_elu),
    "Gelu": Translation(_gelu),
    "HardSigmoid": Translation(_hard_sigmoid),
    "HardSwish": Translation(_hard_swish),
    "Hardmax": Translation(_hardmax),
    "LeakyRelu": Translation(_leaky_relu),
    "LogSoftmax": Translation(_log_softmax),
    "Mish": Translation(_mish),
    "PRelu": Translation(_prelu),
    "Relu": Translation(_relu),
    "Selu": Translation(_selu),
    "Sigmoid": Translation(_sigmoid),
    "Softmax": Translation(_softmax),
    "Softplus": Translation(_softplus),
    "Swish": Translation(_swish),
    "ThresholdedRelu": Translation(_thresholded_relu),
}
