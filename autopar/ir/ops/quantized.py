"""Quantization: elementwise with a scale and zero point per tensor or per channel."""

from __future__ import annotations

from autopar.ir.ops.pointwise import pointwise
from autopar.ir.ops.table import Table, axis, factors, row, same
from autopar.ir.rule import Dims, OpCall, Rule, build_rule


def per_channel(call: OpCall) -> Rule | None:
    """Elementwise, with vectors of scales and zero points along dimension `axis`."""
    rank = len(call.operands[0].shape)
    dims = factors("i", rank)
    channel: Dims = (dims[axis(call, rank, "axis")],)
    operands = [dims, *(channel for _ in call.operands[1:])]
    return build_rule(call, operands, [dims], work=3)


_PER_TENSOR = [
    f"quantized_decomposed.{name}_per_tensor.{overload}"
    for name in ("quantize", "dequantize")
    for overload in ("default", "tensor")
]

RULES: Table = {
    **same(
        [
            "aten.fake_quantize_per_tensor_affine.default",
            "aten.fake_quantize_per_tensor_affine.tensor_qparams",
            *_PER_TENSOR,
        ],
        pointwise(work=3),
    ),
    **same(
        [
            "aten.fake_quantize_per_channel_affine.default",
            "quantized_decomposed.quantize_per_channel.default",
            "quantized_decomposed.dequantize_per_channel.default",
        ],
        per_channel,
    ),
    "aten._weight_int8pack_mm.default": row("m k, n k, n -> m n", whole=("k",), work=2),
}
