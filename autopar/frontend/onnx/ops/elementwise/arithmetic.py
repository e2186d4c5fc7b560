"""Elementwise arithmetic, comparisons, logic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from autopar.frontend.onnx.ops.elementwise.unsigned import (
    divide_unsigned,
    is_wide_unsigned,
    ordered,
    signed,
    unsigned,
)
from autopar.frontend.onnx.trace.node import Array, Node
from autopar.frontend.onnx.trace.values import Translation

Number = float | int
Binary = Callable[[torch.Tensor, Any], torch.Tensor]
"""A function of a tensor and a tensor or number."""


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Translation:
    def run(node: Node, x: torch.Tensor) -> torch.Tensor:
        return function(x)

    return Translation(run)


def _right(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | Number:
    """Returns the second operand, a known single number as a Python one."""
    number = node.scalar(1, a)
    return b if number is None else number


def _commutative(function: Binary) -> Translation:
    def run(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if is_wide_unsigned(a):
            return unsigned(function(signed(a), signed(b)), a.dtype)
        left = node.scalar(0, b)
        return function(a, _right(node, a, b)) if left is None else function(b, left)

    return Translation(run)


def _comparison(function: Binary) -> Translation:
    def run(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if is_wide_unsigned(a):
            return function(ordered(a), ordered(b))
        return function(a, _right(node, a, b))

    return Translation(run)


def _logical(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Translation:
    def run(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return function(a, b)

    return Translation(run)


def _subtract(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if is_wide_unsigned(a):
        return unsigned(signed(a) - signed(b), a.dtype)
    left = node.scalar(0, b)
    return a - _right(node, a, b) if left is None else torch.rsub(b, left)


def _divide(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if is_wide_unsigned(a):
        return unsigned(divide_unsigned(signed(a), signed(b)), a.dtype)
    if a.dtype.is_floating_point or a.is_complex():
        return torch.div(a, _right(node, a, b))
    return torch.div(a, _right(node, a, b), rounding_mode="trunc")


def _modulo(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if is_wide_unsigned(a):
        left, right = signed(a), signed(b)
        return unsigned(left - divide_unsigned(left, right) * right, a.dtype)
    function: Binary = torch.fmod if node.flag("fmod") else torch.remainder
    return function(a, _right(node, a, b))


def _power(node: Node, base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    content = node.content(1)
    if content is not None and content.size == 1 and content.ndim <= base.ndim:
        number = content.item()
        if base.dtype.is_floating_point and isinstance(number, (int, float)):
            return torch.pow(base, int(number) if float(number).is_integer() else number)
    if base.dtype.is_floating_point:
        return torch.pow(base, exponent.to(base.dtype))
    if exponent.dtype.is_floating_point:
        return torch.pow(base.to(torch.float64), exponent.to(torch.float64)).to(base.dtype)
    if is_wide_unsigned(base) or is_wide_unsigned(exponent):
        return unsigned(torch.pow(signed(base), signed(exponent)), base.dtype)
    return torch.pow(base, exponent).to(base.dtype)


def _variadic(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Translation:
    def run(node: Node, *tensors: torch.Tensor) -> torch.Tensor:
        wide = is_wide_unsigned(tensors[0])
        items = [ordered(t) for t in tensors] if wide else tensors
        result = items[0]
        for item in items[1:]:
            result = function(result, item)
        return unsigned(ordered(result), tensors[0].dtype) if wide else result

    return Translation(run)


def _mean(node: Node, *tensors: torch.Tensor) -> torch.Tensor:
    result = tensors[0]
    for item in tensors[1:]:
        result = result + item
    return result / len(tensors)


def _shift(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    left = node.text("direction") == "LEFT"
    if a.dtype == torch.uint64 and not left:
        # An arithmetic shift drags the sign bit along: shift by one, clear it, shift the rest.
        value, by = signed(a), signed(b)
        once = (value >> 1) & (2**63 - 1)
        return unsigned(torch.where(by == 0, value, once >> (by - 1).clamp(min=0)), a.dtype)
    if is_wide_unsigned(a):
        value, by = signed(a), signed(b)
        return unsigned(value << by if left else value >> by, a.dtype)
    return torch.bitwise_left_shift(a, b) if left else torch.bitwise_right_shift(a, b)


def _is_inf(node: Node, x: torch.Tensor) -> torch.Tensor:
    negative = node.flag("detect_negative", True)
    positive = node.flag("detect_positive", True)
    if negative and positive:
        return torch.isinf(x)
    if negative:
        return torch.eq(x, float("-inf"))
    return torch.eq(x, float("inf")) if positive else torch.zeros_like(x, dtype=torch.bool)


def _clip(
    node: Node,
    x: torch.Tensor,
    low: torch.Tensor | None = None,
    high: torch.Tensor | None = None,
) -> torch.Tensor:
    if is_wide_unsigned(x):
        value = ordered(x)
        value = value if low is None else torch.maximum(value, ordered(low))
        value = value if high is None else torch.minimum(value, ordered(high))
        return unsigned(ordered(value), x.dtype)
    bounds: list[Number | None] = [None, None]
    tensors = (low, high)
    for at, tensor in enumerate(tensors):
        bounds[at] = None if tensor is None else node.scalar(at + 1, x)
    if all(t is None or b is not None for t, b in zip(tensors, bounds, strict=True)):
        if bounds == [None, None]:
            return x
        if bounds == [0, None]:
            return torch.relu(x)
        return torch.clamp(x, min=bounds[0], max=bounds[1])
    result = x if low is None else torch.maximum(x, low)
    return result if high is None else torch.minimum(result, high)


def _where(
    node: Node, condition: torch.Tensor, then: torch.Tensor, other: torch.Tensor
) -> torch.Tensor:
    return torch.where(condition, then, other)


def _cumulate(function: Callable[..., torch.Tensor], identity: int) -> Translation:
    def run(node: Node, x: torch.Tensor, axis: Array) -> torch.Tensor:
        dim = int(axis.item())
        reverse = node.flag("reverse")
        result = x.flip(dim) if reverse else x
        result = function(result, dim, dtype=x.dtype)
        if node.flag("exclusive"):
            first = torch.full_like(result.narrow(dim, 0, 1), identity)
            result = torch.cat([first, result.narrow(dim, 0, result.shape[dim] - 1)], dim)
        return result.flip(dim) if reverse else result

    return Translation(run, static=(1,))


def _absolute(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64) else x.abs()


TABLE: Mapping[str, Translation] = {
    "Abs": _unary(_absolute),
    "Acos": _unary(torch.acos),
    "Acosh": _unary(torch.acosh),
    "Add": _commutative(torch.add),
    "And": _logical(torch.logical_and),
    "Asin": _unary(torch.asin),
    "Asinh": _unary(torch.asinh),
    "Atan": _unary(torch.atan),
    "Atanh": _unary(torch.atanh),
    "BitShift": Translation(_shift),
    "BitwiseAnd": _commutative(torch.bitwise_and),
    "BitwiseNot": Translation(
        lambda node, x: unsigned(~signed(x), x.dtype) if is_wide_unsigned(x) else ~x
    ),
    "BitwiseOr": _commutative(torch.bitwise_or),
    "BitwiseXor": _commutative(torch.bitwise_xor),
    "Ceil": _unary(torch.ceil),
    "Clip": Translation(_clip),
    "Cos": _unary(torch.cos),
    "Cosh": _unary(torch.cosh),
    "CumProd": _cumulate(torch.cumprod, 1),
    "CumSum": _cumulate(torch.cumsum, 0),
    "Div": Translation(_divide),
    "Equal": _comparison(torch.eq),
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Floor": _unary(torch.floor),
    "Greater": _comparison(torch.gt),
    "GreaterOrEqual": _comparison(torch.ge),
    "IsInf": Translation(_is_inf),
    "IsNaN": _unary(torch.isnan),
    "Less": _comparison(torch.lt),
    "LessOrEqual": _comparison(torch.le),
    "Log": _unary(torch.log),
    "Max": _variadic(torch.maximum),
    "Mean": Translation(_mean),
    "Min": _variadic(torch.minimum),
    "Mod": Translation(_modulo),
    "Mul": _commutative(torch.mul),
    "Neg": _unary(torch.neg),
    "Not": _unary(torch.logical_not),
    "Or": _logical(torch.logical_or),
    "Pow": Translation(_power),
    "Reciprocal": _unary(torch.reciprocal),
    "Round": _unary(torch.round),
    "Sign": _unary(torch.sign),
    "Sin": _unary(torch.sin),
    "Sinh": _unary(torch.sinh),
    "Sqrt": _unary(torch.sqrt),
    "Sub": Translation(_subtract),
    "Sum": _variadic(torch.add),
    "Tan": _unary(torch.tan),
    "Tanh": _unary(torch.tanh),
    "Where": Translation(_where),
    "Xor": _logical(torch.logical_xor),
}
