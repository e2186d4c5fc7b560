"""Operators as opsets before 11 define them.

Most are the same, and are translated as those of opset 11. `LEGACY` lists those that aren't. An
operator that takes other inputs or attributes there and isn't listed is refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from onnx import AttributeProto
from onnx.defs import OpSchema, SchemaError, get_schema
from onnx.helper import make_attribute

from autopar.frontend.onnx.ops.elementwise.activation import TABLE as ACTIVATION
from autopar.frontend.onnx.ops.elementwise.arithmetic import TABLE as ELEMENTWISE
from autopar.frontend.onnx.ops.image.resize import TABLE as RESIZE
from autopar.frontend.onnx.ops.linear import TABLE as LINEAR
from autopar.frontend.onnx.ops.normalization import TABLE as NORMALIZATION
from autopar.frontend.onnx.ops.shape.indexing import TABLE as INDEXING
from autopar.frontend.onnx.ops.shape.layout import TABLE as LAYOUT
from autopar.frontend.onnx.trace.node import Array, Node, Refused
from autopar.frontend.onnx.trace.values import TensorTree, Translation

MODERN = 11
"""The opset from which on the tables by family hold."""
_NO_EFFECT = ("consumed_inputs",)


@dataclass(frozen=True, slots=True)
class Legacy:
    """How an operator is expressed in opsets before some version."""

    before: int
    translation: Translation


def find_legacy(op_type: str, opset: int) -> Translation | None:
    """Returns the translation of an operator in an old opset; None if opset 11's holds."""
    legacy = LEGACY.get(op_type)
    if legacy is not None and opset < legacy.before:
        return legacy.translation
    return None if opset >= MODERN or _unchanged(op_type, opset) else _REFUSAL


def _unchanged(op_type: str, opset: int) -> bool:
    """Tells whether all that a node may say in an old opset means the same in opset 11."""
    try:
        old, new = get_schema(op_type, opset, ""), get_schema(op_type, MODERN, "")
    except SchemaError:
        return False
    named = {key for key in old.attributes if key not in _NO_EFFECT}
    same = all(_same_attribute(old, new, key) for key in named)
    return same and [i.name for i in old.inputs] == [i.name for i in new.inputs]


def _same_attribute(old: OpSchema, new: OpSchema, key: str) -> bool:
    if key not in new.attributes:
        return False
    one, other = old.attributes[key], new.attributes[key]
    optional = other.required and not one.required
    return not optional and one.type == other.type and one.default_value == other.default_value


def _refuse(node: Node, *inputs: object) -> TensorTree:
    raise Refused(
        f"opset {node.opset} defines {node.op_type} in another way than opset {MODERN}, and that "
        "isn't supported",
        "onnx.version_converter converts old models",
    )


_REFUSAL = Translation(_refuse)


def _broadcast(modern: Translation) -> Translation:
    """Before opset 7, the second operand's dimensions may be those from an axis on."""

    def run(node: Node, a: torch.Tensor, b: torch.Tensor) -> TensorTree:
        if node.flag("broadcast"):
            axis = node.integer("axis", a.ndim - b.ndim)
            axis = axis + a.ndim if axis < 0 else axis
            b = b.reshape([*b.shape, *[1] * (a.ndim - b.ndim - axis)])
        return modern.run(node, a, b)

    return Translation(run)


def _prelu(node: Node, x: torch.Tensor, slope: torch.Tensor) -> TensorTree:
    if slope.numel() > 1 and slope.ndim == 1:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return ACTIVATION["PRelu"].run(node, x, slope)


def _clip(node: Node, x: torch.Tensor) -> torch.Tensor:
    largest = float(np.finfo(np.float32).max)
    return torch.clamp(x, node.number("min", -largest), node.number("max", largest))


def _batch_norm(node: Node, *inputs: torch.Tensor) -> TensorTree:
    training = any(node.wants(at) for at in range(1, 5))
    if training or (node.opset < 7 and not node.flag("is_test")):
        raise Refused(
            f"it trains, as opset {node.opset} defines that",
            "export the model for inference, or with opset 14",
        )
    if not node.flag("spatial", True):
        raise Refused("its spatial=0 isn't supported: means and variances that aren't by channel")
    return NORMALIZATION["BatchNormalization"].run(node, *inputs)


def _dropout(node: Node, x: torch.Tensor) -> TensorTree:
    if node.opset < 7 and not node.flag("is_test") and node.number("ratio", 0.5):
        raise Refused("it trains, as opset 6 defines that", "set its is_test to 1")
    return (x, torch.ones_like(x)) if node.wants(1) else x


def _slice(node: Node, x: torch.Tensor) -> TensorTree:
    starts, ends = np.array(node.integers("starts")), np.array(node.integers("ends"))
    axes = node.integers("axes")
    return LAYOUT["Slice"].run(node, x, starts, ends, None if axes is None else np.array(axes))


def _top_k(node: Node, x: torch.Tensor) -> TensorTree:
    return INDEXING["TopK"].run(node, x, np.array([node.integer("k")]))


def _resize(node: Node, x: torch.Tensor, scales: Array) -> TensorTree:
    """Upsample, and Resize of opset 10: an output element's coordinates are divided by the scale.

    Source: the definition of Upsample-9, and the mode `asymmetric` of Resize-11.
    """
    said: dict[str, AttributeProto] = dict(node.attributes)
    said["coordinate_transformation_mode"] = make_attribute(
        "coordinate_transformation_mode", "asymmetric"
    )
    said["nearest_mode"] = make_attribute("nearest_mode", "floor")
    return RESIZE["Resize"].run(replace(node, attributes=said), x, None, scales, None)


def _upsample(node: Node, x: torch.Tensor, scales: Array | None = None) -> TensorTree:
    if scales is None:
        given = node.numbers("scales")
        if given is None:
            return _refuse(node)
        scales = np.array(given, dtype=np.float32)
    return _resize(node, x, scales)


_BINARY = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
LEGACY: Mapping[str, Legacy] = {
    **{name: Legacy(7, _broadcast(ELEMENTWISE[name])) for name in _BINARY},
    "BatchNormalization": Legacy(14, Translation(_batch_norm)),
    "Clip": Legacy(11, Translation(_clip)),
    "Gemm": Legacy(7, LINEAR["Gemm"]),
    "Dropout": Legacy(10, Translation(_dropout)),
    "PRelu": Legacy(7, Translation(_prelu)),
    "Pad": Legacy(11, LAYOUT["Pad"]),
    "Resize": Legacy(11, Translation(_resize, static=(1,), expands=True)),
    "Slice": Legacy(10, Translation(_slice)),
    "TopK": Legacy(10, Translation(_top_k)),
    "Upsample": Legacy(10, Translation(_upsample, static=(1,), expands=True)),
}
"""The translation of Pad reads the attributes that it has before opset 11, too."""
