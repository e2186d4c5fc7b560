"""Optimizer steps of the domain ai.onnx.preview.training.

Each takes a rate, a step number and then, for any number of tensors, all values, all gradients and
all of each state; it returns the new values and states in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from autopar.frontend.onnx.trace.node import Node, Refused
from autopar.frontend.onnx.trace.values import Translation

Tensors = tuple[torch.Tensor, ...]
Update = Callable[..., Tensors]
"""Called with the node, rate, step number, value, gradient and states: the new value and states."""


def _each(update: Update, states: int) -> Translation:
    """Returns the translation of an optimizer that keeps so many states per tensor."""
    kinds = 2 + states

    def run(node: Node, rate: torch.Tensor, step: torch.Tensor, *tensors: torch.Tensor) -> Tensors:
        count = len(tensors) // kinds
        if count * kinds != len(tensors):
            raise Refused(f"{len(tensors)} tensors aren't values, gradients and {states} states")
        updated = [update(node, rate, step, *tensors[at::count]) for at in range(count)]
        return tuple(tensor for kind in zip(*updated, strict=True) for tensor in kind)

    return Translation(run)


def _regularized(node: Node, value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return gradient + value * node.number("norm_coefficient", 0.0)


def _adagrad(
    node: Node,
    rate: torch.Tensor,
    step: torch.Tensor,
    value: torch.Tensor,
    gradient: torch.Tensor,
    squares: torch.Tensor,
) -> Tensors:
    slope = _regularized(node, value, gradient)
    total = squares + slope * slope
    speed = rate / (1.0 + step * node.number("decay_factor", 0.0))
    size = torch.sqrt(total) + node.number("epsilon", 1e-6)
    return (value - speed * slope / size).to(value.dtype), total


def _adam(
    node: Node,
    rate: torch.Tensor,
    step: torch.Tensor,
    value: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
) -> Tensors:
    alpha, beta = node.number("alpha", 0.9), node.number("beta", 0.999)
    slope = _regularized(node, value, gradient)
    mean = mean * alpha + slope * (1 - alpha)
    square = square * beta + slope * slope * (1 - beta)
    power = step.to(torch.float64)
    unbiased = torch.sqrt(1 - beta**power) / (1 - alpha**power)
    speed = rate * torch.where(step > 0, unbiased, 1.0)
    new = value - (speed * mean / (torch.sqrt(square) + node.number("epsilon", 1e-6)))
    kept = 1.0 - node.number("norm_coefficient_post", 0.0)
    return (new * kept).to(value.dtype), mean, square


def _momentum(
    node: Node,
    rate: torch.Tensor,
    step: torch.Tensor,
    value: torch.Tensor,
    gradient: torch.Tensor,
    speed: torch.Tensor,
) -> Tensors:
    alpha, mode = node.number("alpha"), node.text("mode")
    if mode not in ("standard", "nesterov"):
        raise Refused(f"mode {mode!r} isn't supported")
    slope = _regularized(node, value, gradient)
    share = torch.where(step > 0, node.number("beta"), 1.0)
    speed = (speed * alpha + share * slope).to(value.dtype)
    change = slope + speed * alpha if mode == "nesterov" else speed
    return (value - rate * change).to(value.dtype), speed


TABLE: Mapping[str, Translation] = {
    "Adagrad": _each(_adagrad, 1),
    "Adam": _each(_adam, 2),
    "Momentum": _each(_momentum, 1),
}
