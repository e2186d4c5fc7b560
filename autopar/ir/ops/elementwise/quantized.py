"""Quantization: elementwise with a scale and zero point per tensor or per channel."""

from __future__ import annotations

from autopar.ir.ops.elementwise.pointwise import pointwise
from autopar.ir.ops.reduce.reduction import along, last_dim
from autopar.ir.ops.table import RuleFunction, Table, axis, factors, pending, same
from autopar.ir.rules.rule import Dims, OpCall, Rule, build_rule, make_rule


def per_channel(call: OpCall) -> Rule | None:
    """Elementwise, with vectors of scales and zero points along dimension `axis`."""
    rank = len(call.operands[0].shape)
    dims = factors("i", rank)
    channel: Dims = (dims[axis(call, rank, "axis")],)
    operands = [dims, *(channel for _ in call.operands[1:])]
    return build_rule(call, operands, [dims] * len(call.results), work=3)


def learnable(channel: bool, gradient: bool) -> RuleFunction:
    """Returns the rule function of a fake quantization whose scale and zero point are learned.

    Their gradients are sums over the elements that they apply to.
    """

    def rule(call: OpCall) -> Rule | None:
        rank = len(call.operands[0].shape)
        dims = factors("i", rank)
        scale: Dims = (dims[axis(call, rank, "axis")],) if channel else ((),)
        tensors: list[Dims] = [dims] * (2 if gradient else 1)
        return build_rule(
            call,
            [*tensors, scale, scale],
            [dims, scale, scale] if gradient else [dims],
            reduce=dict.fromkeys((name for (name,) in dims), "sum"),
            linear=(pending(0),) if gradient else (),
            work=5,
        )

    return rule


def per_group(call: OpCall) -> Rule | None:
    """Elementwise on rows of groups `(n g)`; a scale and zero point per row and group."""
    names = call.operands[1:]
    text = ", ".join(["o (n g)", *("o n" for _ in names)])
    size = {"g": call.integer("group_size", 1)}
    return make_rule(f"{text} -> o (n g)", call, sizes=size, whole=("g",), work=3)


_PER_TENSOR = [
    f"quantized_decomposed.{name}_per_tensor.{overload}"
    for name in ("quantize", "dequantize")
    for overload in ("default", "tensor", "tensor2")
]

RULES: Table = {
    **same(
        [
            "aten.fake_quantize_per_tensor_affine.default",
            "aten.fake_quantize_per_tensor_affine.tensor_qparams",
            "aten.fake_quantize_per_tensor_affine_cachemask.default",
            "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",
            "quantized_decomposed.convert_element_type.no_fuse",
            "quantized_decomposed.quantize_per_token.default",
            "quantized_decomposed.dequantize_per_token.default",
            *_PER_TENSOR,
        ],
        pointwise(work=3),
    ),
    **same(
        [
            "aten.fake_quantize_per_channel_affine.default",
            "aten.fake_quantize_per_channel_affine_cachemask.default",
            "quantized_decomposed.quantize_per_channel.default",
            "quantized_decomposed.dequantize_per_channel.default",
        ],
        per_channel,
    ),
    **{
        f"aten._fake_quantize_learnable_per_{scope}_affine{way}.default": learnable(
            scope == "channel", bool(way)
        )
        for scope in ("tensor", "channel")
        for way in ("", "_backward")
    },
    **same(
        [
            "quantized_decomposed.quantize_per_channel_group.default",
            "quantized_decomposed.dequantize_per_channel_group.default",
        ],
        per_group,
    ),
    **same(
        [
            "quantized_decomposed.choose_qparams_per_token.default",
            "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
        ],
        along(last_dim, work=3),
    ),
}
