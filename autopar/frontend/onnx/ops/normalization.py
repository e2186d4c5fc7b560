"""Normalizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.onnx.ops.shape.layout import as_axes, take_for
from autopar.frontend.onnx.trace.node import Array, Node, Refused
from autopar.frontend.onnx.trace.values import Translation


def _normalized(x: torch.Tensor, *statistics: Any) -> torch.Tensor:
    """Returns a batch norm of inference; the function of that name asks for the size of `x`."""
    scale, bias, mean, variance, epsilon = statistics
    norm = torch.ops.aten._native_batch_norm_legit_no_training
    normal: torch.Tensor = norm(x, scale, bias, mean, variance, 0.0, epsilon)[0]
    return normal


def _batch_norm(
    node: Node,
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    epsilon = node.number("epsilon", 1e-5)
    if not node.flag("training_mode"):
        wide = mean.dtype
        if {scale.dtype, bias.dtype, wide} == {x.dtype}:
            return _normalized(x, scale, bias, mean, variance, epsilon)
        y = _normalized(x.to(wide), scale.to(wide), bias.to(wide), mean, variance, epsilon)
        return y.to(x.dtype)
    momentum = node.number("momentum", 0.9)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    now_variance, now_mean = torch.var_mean(x, axes, correction=0)
    normal = (x - now_mean.reshape(shape)) * torch.rsqrt(now_variance.reshape(shape) + epsilon)
    return (
        normal * scale.reshape(shape) + bias.reshape(shape),
        mean * momentum + now_mean * (1 - momentum),
        variance * momentum + now_variance * (1 - momentum),
    )


def _instance_norm(
    node: Node, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    x = _of_channels(x, scale.shape[0])
    return torch.group_norm(x, x.shape[1], scale, bias, node.number("epsilon", 1e-5))


def _of_channels(x: torch.Tensor, channels: int) -> torch.Tensor:
    """Returns a tensor that has as many channels as a scale has, if those are open."""
    if not isinstance(x.shape[1], torch.SymInt) or isinstance(channels, torch.SymInt):
        return x
    take_for(x.shape[1], channels)
    return x.reshape([x.shape[0], channels, *x.shape[2:]])


def _can_be_of(tensor: torch.Tensor, shape: Sequence[int]) -> bool:
    """Returns whether nothing rules out that a tensor has a shape; what is open is taken for it."""
    pairs = zip(tensor.shape, shape, strict=False)
    return tensor.ndim == len(shape) and not any(is_sure(size != each) for size, each in pairs)


def _layer_norm(
    node: Node, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    axis = as_axes([node.integer("axis", -1)], x.ndim)[0]
    shape = list(x.shape[axis:])
    epsilon = node.number("epsilon", 1e-5)
    fits = all(each is None or _can_be_of(each, shape) for each in (scale, bias))
    given = (scale, bias) if fits else (None, None)
    y, mean, deviation = torch.native_layer_norm(x, shape, given[0], given[1], epsilon)
    if not fits:
        y = y * scale if bias is None else y * scale + bias
    return y, mean, deviation


def _group_norm(
    node: Node, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    groups = node.integer("num_groups")
    x = _of_channels(x, scale.shape[0]) if node.opset >= 21 else x
    if groups < 1 or x.shape[1] % groups:
        raise Refused(f"{x.shape[1]} channels in {groups} groups")
    if node.opset < 21:
        # One scale per group, not per channel.
        size = x.shape[1] // groups
        scale, bias = (v.reshape(-1, 1).expand(groups, size).reshape(-1) for v in (scale, bias))
    return torch.group_norm(x, groups, scale, bias, node.number("epsilon", 1e-5))


def _rms_norm(node: Node, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    axis = as_axes([node.integer("axis", -1)], x.ndim)[0]
    # The body that onnx gives it computes float64 in float32.
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    square = torch.mean(wide * wide, list(range(axis, x.ndim)), True)
    normal = wide * torch.rsqrt(square + node.number("epsilon", 1e-5))
    return normal.to(x.dtype) * scale


def _lp_norm(node: Node, x: torch.Tensor) -> torch.Tensor:
    axis = as_axes([node.integer("axis", -1)], x.ndim)[0]
    if node.integer("p", 2) == 1:
        norm = torch.sum(x.abs(), axis, True)
    else:
        norm = torch.sqrt(torch.sum(x * x, axis, True))
    return torch.where(norm == 0, 0.0, x / norm)


def _local_response(node: Node, x: torch.Tensor) -> torch.Tensor:
    size = node.integer("size")
    if size < 1:
        raise Refused(f"a size of {size}")
    low = (size - 1) // 2
    padding = [0, 0] * (x.ndim - 2) + [low, size - 1 - low]
    squares = F.pad(x * x, padding)
    total = squares.narrow(1, 0, x.shape[1])
    for at in range(1, size):
        total = total + squares.narrow(1, at, x.shape[1])
    alpha, beta = node.number("alpha", 1e-4), node.number("beta", 0.75)
    return x / (total * (alpha / size) + node.number("bias", 1.0)) ** beta


def _mean_variance(node: Node, x: torch.Tensor) -> torch.Tensor:
    given = node.integers("axes")
    axes = as_axes([0, 2, 3] if given is None else given, x.ndim)
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / (torch.sqrt(variance) + 1e-9)


def _dropout(
    node: Node, x: torch.Tensor, ratio: Array | None = None, training: Array | None = None
) -> tuple[torch.Tensor, torch.Tensor] | torch.Tensor:
    share = node.number("ratio", 0.5) if ratio is None else float(ratio.item())
    if training is not None and bool(training) and share:
        return torch.native_dropout(x, share, True)
    if not node.wants(1):
        return x
    return x, torch.full(x.shape, True, dtype=torch.bool)


TABLE: Mapping[str, Translation] = {
    "BatchNormalization": Translation(_batch_norm),
    "Dropout": Translation(_dropout, static=(1, 2), draws=True),
    "GroupNormalization": Translation(_group_norm),
    "InstanceNormalization": Translation(_instance_norm),
    "LRN": Translation(_local_response),
    "LayerNormalization": Translation(_layer_norm),
    "LpNormalization": Translation(_lp_norm),
    "MeanVarianceNormalization": Translation(_mean_variance),
    "RMSNormalization": Translation(_rms_norm),
}
