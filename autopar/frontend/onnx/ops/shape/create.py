"""Tensors that follow from attributes and shapes alone, and conversions of dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from onnx import TensorProto

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.onnx.model.dtypes import FLOAT4_VALUES
from autopar.frontend.onnx.ops.shape.layout import as_ints, larger, take_for
from autopar.frontend.onnx.trace.node import Array, Node, Refused, Undecided
from autopar.frontend.onnx.trace.values import Translation

_SATURATING = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)


def _constant(node: Node) -> torch.Tensor:
    for name in ("value", "sparse_value"):
        if name in node.tensors:
            return node.tensors[name]
    if node.has("value_int"):
        return torch.tensor(node.integer("value_int"), dtype=torch.int64)
    if node.has("value_float"):
        return torch.tensor(node.number("value_float"), dtype=torch.float32)
    if node.has("value_ints"):
        return torch.tensor(node.integers("value_ints"), dtype=torch.int64)
    if node.has("value_floats"):
        return torch.tensor(node.numbers("value_floats"), dtype=torch.float32)
    raise Refused("constants of strings aren't supported")


def _constant_of_shape(node: Node, shape: Array) -> torch.Tensor:
    sizes = as_ints(shape)
    if any(is_sure(size < 0) for size in sizes) or (
        node.has("value") and "value" not in node.arrays
    ):
        raise Refused(f"can't fill shape {sizes} with its value")
    if is_sure(math.prod(sizes) >= 2**58):
        raise Refused(f"its result of shape {sizes} is too large for any machine")
    if not node.has("value"):
        return torch.zeros(sizes)
    return torch.full(sizes, node.arrays["value"].item(), dtype=node.tensors["value"].dtype)


def _eye_like(node: Node, x: torch.Tensor) -> torch.Tensor:
    if x.ndim != 2:
        raise Refused(f"its input has {x.ndim} dimensions instead of 2")
    dtype = node.dtype("dtype") if node.has("dtype") else x.dtype
    rows = torch.arange(x.shape[0]).reshape(-1, 1)
    return (torch.arange(x.shape[1]) - node.integer("k") == rows).to(dtype)


def _range(node: Node, start: Array, limit: Array, delta: Array) -> torch.Tensor:
    # The body that onnx gives it is a loop, of which each pass would be run here.
    first, last, step = start.item(), limit.item(), delta.item()
    kind = node.types[0]
    if kind is None or is_sure(step == 0):
        raise Refused("a step of 0")
    if any(isinstance(each, torch.SymInt) for each in (first, last, step)):
        return _open_range(first, last, step, kind.carrier)
    count = max(0, math.ceil((last - first) / step))
    if count >= 2**60:
        raise Refused(f"{count} elements are too many for any machine")
    if kind.carrier.is_floating_point:
        exact: torch.Tensor = torch.arange(count, dtype=torch.float64) * step + first
        return exact.to(kind.carrier)
    return torch.arange(first, first + count * step, step, dtype=kind.carrier)


def _open_range(first: int, last: int, step: int, dtype: torch.dtype) -> torch.Tensor:
    if not is_sure(step >= 1) and not is_sure(step <= -1):
        what = f"a range from {first} to {last} in steps of {step}"
        raise Undecided(what, first, last, step)
    is_up = is_sure(step > 0)
    length, stride = (last - first, step) if is_up else (first - last, -step)
    count = (length + stride - 1) // stride
    count = count if is_sure(count >= 0) else larger(0, count)
    if is_up:
        return torch.arange(first, first + count * step, step, dtype=dtype)
    return torch.arange(count, dtype=dtype) * step + first


def _shape(node: Node, x: torch.Tensor) -> torch.Tensor:
    part = slice(node.integer("start", 0), node.integer("end", x.ndim))
    return torch.tensor(list(x.shape)[part], dtype=torch.int64)


def _size(node: Node, x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64)


def _one_hot(node: Node, indices: torch.Tensor, depth: Array, values: torch.Tensor) -> torch.Tensor:
    size = int(depth.reshape(-1)[0])
    if size < 0 or is_sure(values.numel() != 2):
        raise Refused(f"a depth of {size} and {values.numel()} values")
    take_for(values.numel(), 2)
    known = node.content(2)
    pair = values.reshape(-1) if known is None else known.reshape(-1).tolist()
    axis = node.integer("axis", -1)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    index = indices.to(torch.int64).unsqueeze(axis)
    index = torch.where(index < 0, index + size, index)
    shape = [1] * (indices.ndim + 1)
    shape[axis] = size
    hot = index == torch.arange(size).reshape(shape)
    return torch.where(hot, pair[1], pair[0]).to(values.dtype)


def _cast(node: Node, x: torch.Tensor) -> torch.Tensor:
    """Casts as ONNX does: float8 saturates, integers of less than a byte wrap around."""
    kind = node.element_type(node.integer("to"))
    if kind.number == TensorProto.FLOAT4E2M1:
        return round_float4(x.to(torch.float32))
    if kind.bits < 8:
        whole = x.to(torch.int32) & (2**kind.bits - 1)
        whole = torch.where(whole > kind.high, whole - 2**kind.bits, whole)
        return whole.to(kind.carrier)
    if kind.carrier == torch.float8_e8m0fnu:
        return _to_e8m0(x.to(torch.float32), node.text("round_mode", "up"))
    if kind.carrier in _SATURATING:
        return to_float8(x, kind.carrier, node.flag("saturate", True))
    if x.dtype.is_floating_point and x.dtype.itemsize == 1:
        x = x.to(torch.float32)
    return x if x.dtype == kind.carrier else x.to(kind.carrier)


def to_float8(x: torch.Tensor, dtype: torch.dtype, saturate: bool = True) -> torch.Tensor:
    """Casts to a float8 dtype; what is too large becomes the largest value if it saturates."""
    wide = x.to(torch.float32)
    if saturate:
        largest = torch.finfo(dtype).max
        wide = wide.clamp(-largest, largest)
    elif dtype == torch.float8_e4m3fn:
        # It has no infinity. Versions of torch differ in what they make of larger numbers; 464
        # is the last one that rounds to the largest value.
        wide = torch.where(wide.abs() > 464.0, torch.nan, wide)
    return wide.to(dtype)


def round_float4(x: torch.Tensor) -> torch.Tensor:
    """Rounds to the nearest value of float4 e2m1, ties to the even code; saturates."""
    result = torch.zeros_like(x)
    size = x.abs()
    for at in range(1, len(FLOAT4_VALUES)):
        tie = (FLOAT4_VALUES[at - 1] + FLOAT4_VALUES[at]) / 2
        reached = size >= tie if at % 2 == 0 else size > tie
        result = torch.where(reached, FLOAT4_VALUES[at], result)
    return torch.copysign(result, x)


def _to_e8m0(x: torch.Tensor, mode: str) -> torch.Tensor:
    """Casts to float8 e8m0, the powers of two: only the exponent is kept, rounded by mode."""
    bits = x.abs().view(torch.int32)
    exponent, rest = bits >> 23, bits & 0x7FFFFF
    if mode == "up":
        exponent = exponent + (rest > 0).to(torch.int32)
    elif mode == "nearest":
        exponent = exponent + (rest >= 0x400000).to(torch.int32)
    exponent = torch.where(torch.isfinite(x), exponent.clamp(0, 254), 255)
    return exponent.to(torch.uint8).view(torch.float8_e8m0fnu)


def _bit_cast(node: Node, x: torch.Tensor) -> torch.Tensor:
    kind = node.element_type(node.integer("to"))
    if kind.bits < 8 or kind.bits != x.dtype.itemsize * 8:
        raise Refused(f"can't reinterpret {x.dtype} as {kind.name}")
    return x.view(kind.carrier)


TABLE: Mapping[str, Translation] = {
    "BitCast": Translation(_bit_cast),
    "Cast": Translation(_cast),
    "Constant": Translation(_constant),
    "ConstantOfShape": Translation(_constant_of_shape, static=(0,), expands=True),
    "EyeLike": Translation(_eye_like, shaped=(0,), expands=True),
    "OneHot": Translation(_one_hot, static=(1,), expands=True),
    "Range": Translation(_range, static=(0, 1, 2), expands=True),
    "Shape": Translation(_shape, shaped=(0,)),
    "Size": Translation(_size, shaped=(0,)),
}
