"""Elementwise ops with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autopar.ir.dtypes import FLOATS, INEXACT
from autopar.ir.expr.expression import IntExpr, shape_str
from autopar.ir.ops.table import IDEMPOTENT, SERIES, Over, RuleFunction, Table, pending, same
from autopar.ir.rules.rule import ALL_MONOIDS, Dims, Linear, OpCall, Rule, RuleError, build_rule


def broadcast_dims(shape: Sequence[IntExpr], result: Sequence[IntExpr]) -> Dims:
    """Returns an operand's factors: dimensions align from the right, size 1 is broadcast.

    Raises:
        RuleError: If the operand has more dimensions than the result.
    """
    skip = len(result) - len(shape)
    if skip < 0:
        raise RuleError(f"{shape_str(shape)} doesn't broadcast to {shape_str(result)}")
    return tuple(
        () if size == 1 and result[skip + at] != 1 else (f"i{skip + at}",)
        for at, size in enumerate(shape)
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
    real = call.results[0].dtype in FLOATS
    return (pointwise(EXTREMA) if finite and real else pointwise())(call)


def scaled(call: OpCall) -> Rule | None:
    """aten.mul.Scalar and div.Scalar: linear, and monotone if the scalar is positive."""
    other = call.args.get("other")
    positive = isinstance(other, (int, float)) and math.isfinite(other) and other > 0
    real = call.results[0].dtype in FLOATS
    return (pointwise(LEFT, EXTREMA) if positive and real else pointwise(LEFT))(call)


def absolute(call: OpCall) -> Rule | None:
    """aten.abs: of a product, the product of those of its factors, unless integers wrap around."""
    inexact = call.operands[0].dtype in INEXACT
    return (pointwise(PRODUCT) if inexact else pointwise())(call)


def bitwise(monoid: str) -> RuleFunction:
    """Returns the rule function of a bitwise op that is, of booleans, this monoid."""

    def rule(call: OpCall) -> Rule | None:
        boolean = all(operand.dtype == "bool" for operand in call.operands)
        rows = _lattice(monoid, ("any", "all")) if boolean and len(call.operands) == 2 else ()
        return pointwise(*rows)(call)

    return rule


def leaky(call: OpCall) -> Rule | None:
    """aten.leaky_relu: monotone if the slope is positive."""
    slope = call.args.get("negative_slope", 0.01)
    positive = isinstance(slope, (int, float)) and 0 < slope < math.inf
    return (pointwise(EXTREMA) if positive else pointwise())(call)


def rrelu_functional(call: OpCall) -> Rule | None:
    """aten.rrelu_with_noise_functional draws random numbers in training only."""
    return None if call.flag("training") else pointwise()(call)


def fill(call: OpCall) -> Rule | None:
    """aten.fill.Tensor: a scalar, everywhere."""
    return pointwise(pending(1, monoids=ALL_MONOIDS), work=0)(call)


def masked_fill(call: OpCall) -> Rule | None:
    """aten.masked_fill.Scalar: a constant survives only an idempotent reduction, zero a sum too."""
    zero = call.args.get("value") == 0
    monoids = IDEMPOTENT | {"sum"} if zero else IDEMPOTENT
    return pointwise(pending(0, monoids=monoids))(call)


BOTH = pending(0, 1)
LEFT = pending(0)
RIGHT = pending(1)
MOVE = pending(0, monoids=ALL_MONOIDS)
PRODUCT = pending(0, monoids=("prod",))
EXTREMA = pending(0, monoids=("max", "min"))
"""Monotone, infinities and NaN included: it commutes with max and min up to rounding."""


def _lattice(monoid: str, distributive: Sequence[str]) -> tuple[Linear, ...]:
    """Returns the rows of a monoid of a distributive lattice: max with min, any with all."""
    one = [pending(at, monoids=distributive) for at in (0, 1)]
    return (pending(0, 1, monoids=(monoid,)), *one)


def _aten(names: str, rule: RuleFunction, *overloads: str) -> dict[str, RuleFunction]:
    return same(kinds(names, *overloads), rule)


def kinds(names: str, *overloads: str) -> list[str]:
    """Returns the kinds of ATen's overloads of these names."""
    return [f"aten.{name}.{overload}" for name in names.split() for overload in overloads]


UNARY: Table = {
    **_aten(
        "acos angle asin atanh bitwise_not cos cosh erfc erfinv frac i0 isfinite"
        " isinf isnan isneginf isposinf logical_not logit"
        " nan_to_num reciprocal rsqrt sgn sign signbit sin sinc tan",
        pointwise(),
        "default",
    ),
    **_aten("digamma lgamma mvlgamma polygamma", pointwise(work=SERIES), "default"),
    # What is greater than an element of their domain is in it too.
    **_aten("acosh log log10 log1p log2 sqrt", pointwise(pending(0, monoids=("min",))), "default"),
    **_aten("abs", absolute, "default"),
    **_aten("square", pointwise(PRODUCT), "default"),
    **_aten(
        "asinh atan ceil erf exp exp2 expm1 floor relu relu6 round sigmoid sinh tanh trunc",
        pointwise(EXTREMA),
        "default",
    ),
    **_aten("clamp clamp_max clamp_min hardtanh", pointwise(EXTREMA), "default"),
    **_aten("round", pointwise(EXTREMA), "decimals"),
    **_aten(
        "gelu hardswish log_sigmoid_forward mish silu threshold",
        pointwise(work=5),
        "default",
    ),
    **_aten(
        "celu elu hardshrink hardsigmoid selu softplus softshrink",
        pointwise(EXTREMA, work=5),
        "default",
    ),
    **_aten("leaky_relu", leaky, "default"),
    **_aten("rrelu_with_noise_functional", rrelu_functional, "default"),
    **_aten("neg", pointwise(LEFT), "default"),
    **_aten("deg2rad rad2deg", pointwise(LEFT, EXTREMA), "default"),
    **_aten(
        "alias clone contiguous detach detach_copy lift lift_fresh lift_fresh_copy positive",
        pointwise(MOVE, work=0),
        "default",
    ),
    **_aten("frexp", pointwise(), "Tensor"),
    **_aten(
        "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1"
        " special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr"
        " special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0"
        " special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0"
        " special_scaled_modified_bessel_k1 special_spherical_bessel_j0",
        pointwise(work=20),
        "default",
    ),
}

COMPARISON: Table = {
    **_aten("eq ge gt le lt ne", pointwise(), "Tensor", "Scalar"),
    **_aten("logical_xor", pointwise(), "default"),
    **_aten("bitwise_and", bitwise("all"), "Tensor"),
    **_aten("bitwise_or", bitwise("any"), "Tensor"),
    **_aten("bitwise_xor", pointwise(), "Tensor"),
    **_aten("bitwise_and bitwise_or bitwise_xor", pointwise(), "Scalar", "Scalar_Tensor"),
    **_aten(
        "bitwise_left_shift bitwise_right_shift",
        pointwise(),
        *("Tensor", "Tensor_Scalar", "Scalar_Tensor"),
    ),
    **_aten("__lshift__ __rshift__", pointwise(), "Tensor", "Scalar"),
    **_aten("logical_and", pointwise(*_lattice("all", ("any", "all"))), "default"),
    **_aten("logical_or", pointwise(*_lattice("any", ("any", "all"))), "default"),
    **_aten("isclose", pointwise(), "default"),
}

ARITHMETIC: Table = {
    **_aten("add", pointwise(BOTH), "Tensor"),
    **_aten("add", add_scalar, "Scalar"),
    **_aten("sub", pointwise(BOTH), "Tensor"),
    **_aten("sub", add_scalar, "Scalar"),
    **_aten("rsub", pointwise(BOTH), "Tensor"),
    **_aten("rsub", pointwise(), "Scalar"),
    **_aten("mul", pointwise(LEFT, RIGHT, pending(0, 1, monoids=("prod",))), "Tensor"),
    **_aten("div", pointwise(LEFT), "Tensor"),
    **_aten("mul div", scaled, "Scalar"),
    **_aten("ldexp", pointwise(LEFT), "Tensor"),
    **_aten("div", pointwise(), "Tensor_mode", "Scalar_mode"),
    **_aten("floor_divide", pointwise(), "default", "Scalar"),
    **_aten("pow", pointwise(), "Tensor_Tensor", "Tensor_Scalar", "Scalar"),
    **_aten("fmod remainder", pointwise(), "Tensor", "Scalar"),
    **_aten("remainder", pointwise(), "Scalar_Tensor"),
    **_aten("maximum", pointwise(*_lattice("max", ("max", "min"))), "default"),
    **_aten("minimum", pointwise(*_lattice("min", ("max", "min"))), "default"),
    **_aten("clamp", pointwise(*(pending(n, monoids=("max", "min")) for n in range(3))), "Tensor"),
    **_aten("clamp_min", pointwise(*_lattice("max", ("max", "min"))), "Tensor"),
    **_aten("clamp_max", pointwise(*_lattice("min", ("max", "min"))), "Tensor"),
    **_aten(
        "atan2 fmax fmin gcd heaviside hypot lcm nextafter special_xlog1py", pointwise(), "default"
    ),
    **_aten("igamma igammac special_zeta", pointwise(work=SERIES), "default"),
    **_aten(
        "logaddexp logaddexp2", pointwise(EXTREMA, pending(1, monoids=("max", "min"))), "default"
    ),
    **_aten("special_xlog1py", pointwise(), "self_scalar", "other_scalar"),
    **_aten("special_zeta", pointwise(work=SERIES), "self_scalar", "other_scalar"),
    **_aten(
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u"
        " special_chebyshev_polynomial_v special_chebyshev_polynomial_w"
        " special_hermite_polynomial_h special_hermite_polynomial_he"
        " special_laguerre_polynomial_l special_legendre_polynomial_p"
        " special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u"
        " special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w",
        pointwise(work=20),
        *("default", "n_scalar", "x_scalar"),
    ),
    **_aten("copysign", pointwise(), "Tensor", "Scalar"),
    **_aten("xlogy", pointwise(), "Tensor", "Scalar_Self", "Scalar_Other"),
    **_aten("lerp", pointwise(BOTH), "Scalar", "Tensor"),
    **_aten("addcmul", pointwise(pending(0, 1), pending(0, 2), work=2), "default"),
    **_aten("addcdiv", pointwise(BOTH, work=2), "default"),
    **_aten("complex", pointwise(BOTH), "default"),
    **_aten(
        "_conj _conj_copy _conj_physical _neg_view _neg_view_copy conj_physical resolve_conj"
        " resolve_neg",
        pointwise(LEFT, work=0),
        "default",
    ),
    **_aten("polar", pointwise(LEFT), "default"),
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
    **_aten(
        "masked_fill",
        pointwise(
            pending(0, 2, monoids=ALL_MONOIDS),
            pending(0, monoids=IDEMPOTENT),
            pending(2, monoids=IDEMPOTENT),
        ),
        "Tensor",
    ),
    **_aten("copy", pointwise(pending(1, monoids=ALL_MONOIDS)), "default"),
    **_aten("fill", pointwise(), "Scalar"),
    **_aten("fill", fill, "Tensor"),
    **_aten("zero", pointwise(work=0), "default"),
}

BACKWARD: Table = {
    **_aten(
        "_prelu_kernel_backward elu_backward gelu_backward hardshrink_backward"
        " hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward"
        " log_sigmoid_backward logit_backward mish_backward native_dropout_backward"
        " rrelu_with_noise_backward sigmoid_backward silu_backward softplus_backward"
        " softshrink_backward tanh_backward threshold_backward",
        pointwise(LEFT, work=5),
        "default",
    ),
}

OVER_FIRST: Mapping[str, Over] = {
    f"aten.{name}.default": Over("self", "out", "out") for name in ("maximum", "minimum")
}

RULES: Table = {**UNARY, **COMPARISON, **ARITHMETIC, **CHOICE, **BACKWARD}
