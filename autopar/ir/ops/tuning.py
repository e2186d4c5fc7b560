"""What CPUs compute faster in another form, at inference: a table for `autopar.runtime.tuned`.

All are ops on floating point whose results are the same in both forms but for rounding.
"""

from __future__ import annotations

PRODUCT = "aten.mm.default"
CONVOLUTION = "aten.convolution.default"
EMBEDDING = "aten.embedding.default"
PICKED = "aten.where.self"

NORMALIZED = frozenset(("aten._native_batch_norm_legit_no_training.default",))
"""Batch norms by running statistics: of a convolution, another convolution."""

SHIFTED = frozenset(("aten.add.Tensor",))
SCALED = frozenset(("aten.mul.Tensor",))
"""What adds to a product or a convolution, or multiplies it, is one too if that is a weight."""

BY_ROW = frozenset(("aten._to_copy.default", "aten.mul.Tensor", "aten.sub.Tensor"))
"""What may be done to the rows that are looked up in place of the table, as dequantizing is."""

OVER = {
    f"aten.{name}.{overload}": f"{name}_"
    for overload, names in {
        "default": (
            "clamp",
            "erf",
            "exp",
            "gelu",
            "hardsigmoid",
            "hardswish",
            "leaky_relu",
            "neg",
            "reciprocal",
            "relu",
            "rsqrt",
            "sigmoid",
            "silu",
            "sqrt",
            "tanh",
        ),
        "Tensor": ("add", "div", "mul", "sub"),
    }.items()
    for name in names
}
"""Functions of each element that can be written over their first operand, and by which function."""
