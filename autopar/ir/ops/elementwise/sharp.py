"""Sharp ops: they tell numbers apart however close they are."""

from __future__ import annotations

from autopar.ir.ops.elementwise.pointwise import kinds
from autopar.ir.program import Op

_SHARP = frozenset(
    (
        *kinds("eq ge gt le lt ne fmod remainder", "Tensor", "Scalar"),
        *kinds("div", "Tensor_mode", "Scalar_mode"),
        *kinds(
            "acos acosh asin atanh ceil elu_backward floor floor_divide frac hardshrink_backward"
            " hardsigmoid_backward hardswish_backward hardtanh_backward heaviside isclose"
            " leaky_relu_backward log log10 log1p log2 logical_not reciprocal round rsqrt sgn sign"
            " signbit softshrink_backward sqrt threshold_backward trunc",
            "default",
        ),
    )
)
"""Ops that tell numbers apart however close they are: what is rounded in another way may be far."""

SMOOTH = frozenset(("aten.exp.default", "aten.exp2.default"))
"""Ops whose results are far from where others are sharp."""

_POWER = "aten.pow.Tensor_Scalar"


def is_sharp(op: Op) -> bool:
    """Whether what is far apart of an op's results may be of operands that are near.

    Powers of a whole exponent are polynomials; of others, numbers near 0 are far apart, or none.
    """
    if op.kind != _POWER:
        return op.kind in _SHARP
    exponent = op.arg("exponent")
    if not isinstance(exponent, (int, float)):
        return True
    return exponent < 0 or not float(exponent).is_integer()
