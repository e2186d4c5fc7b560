"""Quantized numbers: integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from onnx import TensorProto

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.onnx.model.dtypes import ElementType
from autopar.frontend.onnx.ops.elementwise.unsigned import is_wide_unsigned
from autopar.frontend.onnx.ops.image.convolution import convolve
from autopar.frontend.onnx.ops.shape.create import round_float4, to_float8
from autopar.frontend.onnx.trace.node import Node, Refused
from autopar.frontend.onnx.trace.values import Translation


def _aligned(node: Node, parameter: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Brings a scale or zero point to a shape that broadcasts to `x`.

    It is one number, or one per slice of an axis, or one per block of the axis.
    """
    if is_sure(parameter.numel() == 1) and parameter.ndim <= 1:
        return parameter.reshape(())
    axis = node.integer("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    if parameter.ndim == 1:
        if not 0 <= axis < x.ndim or is_sure(parameter.shape[0] != x.shape[axis]):
            raise Refused(f"{parameter.shape[0]} scales for axis {axis} of {list(x.shape)}")
        return parameter.reshape([-1 if at == axis else 1 for at in range(x.ndim)])
    block = node.integer("block_size", 0)
    if parameter.ndim != x.ndim or block < 1:
        raise Refused(f"scales of shape {list(parameter.shape)} for {list(x.shape)}")
    spread = parameter.repeat_interleave(block, axis)
    return spread.narrow(axis, 0, x.shape[axis])


def _to_float(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return x.to(torch.int32).to(dtype) if is_wide_unsigned(x) else x.to(dtype)


def _dequantize(
    node: Node, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None = None
) -> torch.Tensor:
    kind = node.dtype("output_dtype") if node.integer("output_dtype") else scale.dtype
    wide = torch.float64 if scale.dtype == torch.float64 else torch.float32
    value = _to_float(x, wide)
    if zero is not None and not _is_zero(node, 2):
        value = value - _aligned(node, _to_float(zero, wide), x)
    known = node.scalar(1, value) if kind == torch.float32 else None
    if known is not None:
        return value * known
    return (value * _aligned(node, scale.to(wide), x)).to(kind)


def _is_zero(node: Node, position: int) -> bool:
    content = node.content(position)
    return content is not None and not content.any()


def _quantize(
    node: Node, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None = None
) -> torch.Tensor:
    kind = node.element_type(node.integer("output_dtype") or TensorProto.UINT8)
    if zero is not None and node.types[2] is not None:
        kind = node.types[2]
    value = _to_float(x) / _aligned(node, scale.to(torch.float32), x)
    if kind.carrier.is_floating_point:
        if zero is not None and not _is_zero(node, 2):
            value = value + _aligned(node, _to_float(zero), x)
        if kind.number == TensorProto.FLOAT4E2M1:
            return round_float4(value)
        return to_float8(value, kind.carrier, node.flag("saturate", True))
    value = torch.round(value)
    if zero is not None and not _is_zero(node, 2):
        value = value + _aligned(node, _to_float(zero), x)
    return _saturated(value, kind)


def _saturated(value: torch.Tensor, kind: ElementType) -> torch.Tensor:
    low, high = kind.low, kind.high
    if kind.bits >= 8:
        info = torch.iinfo(kind.carrier)
        low, high = info.min, info.max
    clamped = torch.clamp(value, low, high)
    return clamped.to(torch.int32).to(kind.carrier) if kind.bits > 8 else clamped.to(kind.carrier)


def _dynamic_quantize(
    node: Node, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low = torch.clamp(torch.amin(x), max=0.0)
    high = torch.clamp(torch.amax(x), min=0.0)
    scale = (high - low) / 255.0
    # The body that onnx gives it divides by zero where all elements are.
    scale = torch.where(scale == 0, 1.0, scale)
    zero = torch.clamp(torch.round(-low / scale), 0, 255)
    quantized = torch.clamp(torch.round(x / scale) + zero, 0, 255)
    return quantized.to(torch.uint8), scale, zero.to(torch.uint8)


def _centered(
    node: Node, x: torch.Tensor, zero: torch.Tensor | None, position: int, axis: int
) -> torch.Tensor:
    """Returns `x` minus its zero point, which may differ along one axis, as int32."""
    value = x.to(torch.int32)
    if zero is None or _is_zero(node, position):
        return value
    point = zero.to(torch.int32)
    if point.ndim == 1 and point.shape[0] > 1:
        shape = [1] * x.ndim
        shape[axis] = -1
        point = point.reshape(shape)
    elif point.numel() == 1:
        point = point.reshape(())
    return value - point


def _exact_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiplies int32 matrices of 8-bit numbers.

    In float32 as long as every partial sum is an integer that float32 holds: that is faster by
    far. In float64, else.
    """
    exact = is_sure(a.shape[-1] * 255 * 255 < 2**24)
    kind = torch.float32 if exact else torch.float64
    return torch.matmul(a.to(kind), b.to(kind)).to(torch.int32)


def _matmul_integer(
    node: Node,
    a: torch.Tensor,
    b: torch.Tensor,
    a_zero: torch.Tensor | None = None,
    b_zero: torch.Tensor | None = None,
) -> torch.Tensor:
    left = _centered(node, a, a_zero, 2, a.ndim - 2 if a.ndim > 1 else 0)
    right = _centered(node, b, b_zero, 3, b.ndim - 1)
    return _exact_product(left, right)


def _requantized(
    node: Node, product: torch.Tensor, factor: torch.Tensor, zero: torch.Tensor, position: int
) -> torch.Tensor:
    kind = node.types[position]
    if kind is None:
        raise Refused("its zero point is missing")
    value = torch.round(product.to(torch.float32) * factor) + _to_float(zero).reshape(())
    return _saturated(value, kind)


def _qlinear_matmul(
    node: Node,
    a: torch.Tensor,
    a_scale: torch.Tensor,
    a_zero: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_zero: torch.Tensor,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor,
) -> torch.Tensor:
    left = _centered(node, a, a_zero, 2, max(0, a.ndim - 2))
    right = _centered(node, b, b_zero, 5, b.ndim - 1)
    scales = _row_scale(a_scale, a) * b_scale.to(torch.float32) / y_scale.to(torch.float32)
    return _requantized(node, _exact_product(left, right), scales, y_zero, 7)


def _row_scale(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    wide = scale.to(torch.float32)
    return wide.reshape(-1, 1) if wide.ndim == 1 and wide.shape[0] > 1 and x.ndim > 1 else wide


def _conv_integer(
    node: Node,
    x: torch.Tensor,
    w: torch.Tensor,
    x_zero: torch.Tensor | None = None,
    w_zero: torch.Tensor | None = None,
) -> torch.Tensor:
    left = _centered(node, x, x_zero, 2, 1)
    right = _centered(node, w, w_zero, 3, 0)
    return convolve(node, left.to(torch.float64), right.to(torch.float64)).to(torch.int32)


def _qlinear_conv(
    node: Node,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    w_zero: torch.Tensor,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    left = _centered(node, x, x_zero, 2, 1).to(torch.float64)
    right = _centered(node, w, w_zero, 5, 0).to(torch.float64)
    extra = None if bias is None else bias.to(torch.float64)
    product = convolve(node, left, right, extra)
    factor = (x_scale * w_scale / y_scale).to(torch.float32)
    if factor.numel() > 1:
        factor = factor.reshape(-1, *[1] * (x.ndim - 2))
    return _requantized(node, product, factor, y_zero, 7)


TABLE: Mapping[str, Translation] = {
    "ConvInteger": Translation(_conv_integer),
    "DequantizeLinear": Translation(_dequantize, expands=True),
    "DynamicQuantizeLinear": Translation(_dynamic_quantize),
    "MatMulInteger": Translation(_matmul_integer),
    "QLinearConv": Translation(_qlinear_conv),
    "QLinearMatMul": Translation(_qlinear_matmul),
    "QuantizeLinear": Translation(_quantize),
}
