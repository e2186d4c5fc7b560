"""Elementwise ops with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.ir.ops.table import IDEMPOTENT, RuleFunction, Table, pending, same
from autopar.ir.rule import ALL_MONOIDS, Dims, Linear, OpCall, Rule, build_rule


def broadcast_dims(shape: Sequence[int], result: Sequence[int]) -> Dims:
    """Returns an operand's factors: dimensions align from the right, size 1 is broadcast."""
    skip = len(result) - len(shape)
    return tuple(
        (f"i{skip + at}",) if size == result[skip + at] else () for at, size in enumerate(shape)
    )


def pointwise(*linear: Linear, work: float = 1) -> RuleFunction:
    """Returns the rule function of an elementwise op with this linearity."""

    def rule(call: OpCall) -> Rule | None:
        shape = call.results[0].shape
        operands = [broadcast_dims(operand.shape, shape) for operand in call.operands]
        results = [broadcast_dims(result.shape, shape) for result in call.results]
        return build_rule(call, operands, results, linear=linear, work=work)

    return rule


def add_scalar(call: OpCall) -> Rule | None:
    """aten.add.Scalar and sub.Scalar: monotone, so max and min of floats pass through.

    Not those of integers: the identity of max, the least integer, might wrap around.
    """
    other = call.args.get("other")
    finite = isinstance(other, (int, float)) and math.isfinite(other)
    real = call.results[0].dtype in ("f64", "f32", "f16", "bf16")
    return (pointwise(EXTREMA) if finite and real else pointwise())(call)


def masked_fill(call: OpCall) -> Rule | None:
    """aten.masked_fill.Scalar: a constant survives only an idempotent reduction, zero a sum too."""
    zero = call.args.get("value") == 0
    monoids = IDEMPOTENT | {"sum"} if zero else IDEMPOTENT
    return pointwise(pending(0, monoids=monoids))(call)


BOTH = pending(0, 1)
LEFT = pending(0)
RIGHT = pending(1)
MOVE = pending(0, monoids=ALL_MONOIDS)
EXTREMA = pending(0, monoids=("max", "min"))
"""Monotone without any rounding of its own: it commutes with max and min exactly."""


def _both_or_one(*monoids: str) -> tuple[Linear, ...]:
    return tuple(pending(*operands, monoids=monoids) for operands in ((0, 1), (0,), (1,)))


def _aten(names: str, rule: RuleFunction, *overloads: str) -> dict[str, RuleFunction]:
    return same([f"aten.{name}.{o}" for name in names.split() for o in overloads], rule)


UNARY: Table = {
    **_aten(
        "abs acos acosh angle asin asinh atan atanh bitwise_not cos cosh digamma erf erfc erfinv"
        " exp exp2 expm1 frac i0 isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2"
        " logical_not logit nan_to_num reciprocal rsqrt sgn sigmoid sign signbit"
        " sin sinc sinh sqrt square tan tanh",
        pointwise(),
        "default",
    ),
    **_aten("ceil floor relu round trunc relu6", pointwise(EXTREMA), "default"),
    **_aten("clamp clamp_max clamp_min hardtanh", pointwise(EXTREMA), "default"),
    **_aten("round", pointwise(), "decimals"),
    **_aten(
        "celu elu gelu hardshrink hardsigmoid hardswish leaky_relu mish selu silu softplus"
        " softshrink threshold",
        pointwise(work=5),
        "default",
    ),
    **_aten("deg2rad neg rad2deg", pointwise(LEFT), "default"),
    **_aten("alias clone detach lift_fresh_copy positive contiguous", pointwise(MOVE), "default"),
    **_aten("polygamma", pointwise(), "default"),
    **_aten(
        "special_airy_ai special_bessel_j0 special_bessel_j1 special_entr special_erfcx"
        " special_i0e special_i1 special_i1e special_log_ndtr special_ndtri",
        pointwise(work=20),
        "default",
    ),
}

COMPARISON: Table = {
    **_aten("eq ge gt le lt ne", pointwise(), "Tensor", "Scalar"),
    **_aten("logical_xor", pointwise(), "default"),
    **_aten("bitwise_and bitwise_or bitwise_xor", pointwise(), "Tensor", "Scalar", "Scalar_Tensor"),
    **_aten("bitwise_left_shift bitwise_right_shift", pointwise(), "Tensor", "Tensor_Scalar"),
    **_aten("__lshift__ __rshift__", pointwise(), "Tensor", "Scalar"),
    **_aten("logical_and", pointwise(*_both_or_one("all")), "default"),
    **_aten("logical_or", pointwise(*_both_or_one("any")), "default"),
    **_aten("isclose", pointwise(), "default"),
}

ARITHMETIC: Table = {
    **_aten("add", pointwise(BOTH), "Tensor"),
    **_aten("add", add_scalar, "Scalar"),
    **_aten("sub", pointwise(BOTH), "Tensor"),
    **_aten("sub", add_scalar, "Scalar"),
    **_aten("rsub", pointwise(BOTH), "Tensor"),
    **_aten("rsub", pointwise(), "Scalar"),
    **_aten("mul", pointwise(LEFT, RIGHT), "Tensor"),
    **_aten("div", pointwise(LEFT), "Tensor"),
    **_aten("mul div", pointwise(LEFT), "Scalar"),
    **_aten("div", pointwise(), "Tensor_mode", "Scalar_mode"),
    **_aten("floor_divide", pointwise(), "default", "Scalar"),
    **_aten("pow", pointwise(), "Tensor_Tensor", "Tensor_Scalar", "Scalar"),
    **_aten("fmod remainder", pointwise(), "Tensor", "Scalar"),
    **_aten("remainder", pointwise(), "Scalar_Tensor"),
    **_aten("maximum", pointwise(*_both_or_one("max")), "default"),
    **_aten("minimum", pointwise(*_both_or_one("min")), "default"),
    **_aten("clamp", pointwise(), "Tensor"),
    **_aten("clamp_max clamp_min", pointwise(), "Tensor"),
    **_aten(
        "atan2 fmax fmin gcd heaviside hypot igamma igammac lcm logaddexp logaddexp2 nextafter"
        " special_zeta",
        pointwise(),
        "default",
    ),
    **_aten("copysign", pointwise(), "Tensor", "Scalar"),
    **_aten("xlogy", pointwise(), "Tensor", "Scalar_Self", "Scalar_Other"),
    **_aten("lerp", pointwise(BOTH), "Scalar", "Tensor"),
    **_aten("addcmul", pointwise(pending(0, 1), pending(0, 2), work=2), "default"),
    **_aten("addcdiv", pointwise(BOTH, work=2), "default"),
    **_aten("complex", pointwise(BOTH), "default"),
    **_aten("conj_physical", pointwise(LEFT), "default"),
    **_aten("polar", pointwise(), "default"),
    **_aten("_prelu_kernel", pointwise(), "default"),
}

CHOICE: Table = {
    **_aten(
        "where",
        pointwise(
            pending(1, 2, monoids=ALL_MONOIDS),
            pending(1, monoids=IDEMPOTENT),
            pending(2, monoids=IDEMPOTENT),
        ),
        "self",
    ),
    **_aten("where", pointwise(pending(1, monoids=IDEMPOTENT)), "ScalarOther", "ScalarSelf"),
    **_aten("where", pointwise(), "Scalar"),
    **_aten("masked_fill", masked_fill, "Scalar"),
    **_aten("masked_fill", pointwise(pending(0, 2, monoids=ALL_MONOIDS)), "Tensor"),
    **_aten("copy", pointwise(pending(1, monoids=ALL_MONOIDS)), "default"),
    **_aten("fill", pointwise(), "Scalar"),
}

BACKWARD: Table = {
    **_aten(
        "elu_backward gelu_backward hardsigmoid_backward hardswish_backward hardtanh_backward"
        " leaky_relu_backward logit_backward mish_backward native_dropout_backward"
        " sigmoid_backward silu_backward softplus_backward tanh_backward threshold_backward",
        pointwise(LEFT, work=5),
        "default",
    ),
}

RULES: Table = {**UNARY, **COMPARISON, **ARITHMETIC, **CHOICE, **BACKWARD}
