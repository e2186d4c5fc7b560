"""Samples of elementwise ops and casts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.ops.sample import Sample, b, c, f, i, s

F32 = torch.float32

PLAIN = """abs angle asinh atan
ceil cos cosh digamma erf erfc exp exp2 expm1 floor frac i0 isfinite isinf
isnan isneginf isposinf lgamma reciprocal relu relu6 round sgn sigmoid sign signbit sin sinc sinh
square tan tanh trunc nan_to_num celu elu gelu hardshrink hardsigmoid hardswish leaky_relu mish selu
silu softplus softshrink hardtanh neg deg2rad rad2deg alias clone detach lift_fresh_copy positive
contiguous logical_not special_airy_ai special_bessel_j0 special_bessel_j1 special_entr
special_erfcx special_i0e special_i1 special_i1e special_log_ndtr alias_copy conj_physical
special_modified_bessel_i0 special_modified_bessel_i1 special_spherical_bessel_j0
log_sigmoid_forward detach_copy lift lift_fresh _conj_physical _neg_view _neg_view_copy
resolve_conj resolve_neg zero frexp.Tensor"""

POSITIVE = """log log10 log1p log2 rsqrt sqrt acosh special_bessel_y0 special_bessel_y1
special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
special_scaled_modified_bessel_k1"""

COMPLEX = """abs angle acos asinh conj_physical _conj _conj_copy _conj_physical _neg_view cos exp
isfinite log neg reciprocal resolve_conj rsqrt sgn sigmoid sinh sqrt square tanh"""

MONOTONE = """abs acosh asinh atan ceil celu clone deg2rad elu erf exp exp2 expm1 floor hardshrink
hardsigmoid hardtanh leaky_relu log log10 log1p log2 relu relu6 round selu sigmoid sinh softplus
softshrink sqrt tanh trunc"""

POLYNOMIALS = """special_chebyshev_polynomial_t special_chebyshev_polynomial_u
special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h
special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w"""

UNIT = "acos asin atanh erfinv logit special_ndtri"

BINARY = """atan2 fmax fmin heaviside hypot logaddexp logaddexp2 maximum minimum nextafter
logical_and logical_or logical_xor isclose"""

COMPARE = "eq ge gt le lt ne"


def samples() -> Iterator[Sample]:
    """Yields the samples."""
    yield from unary()
    yield from binary()
    yield from arithmetic()
    yield from choice()
    yield from backward()
    yield from casts()


def unary() -> Iterator[Sample]:
    """Yields samples of ops of one tensor."""
    for name in PLAIN.split():
        yield s(name, f(4, 5))
    for name in POSITIVE.split():
        yield s(name, f(3, 1, 4, low=1.1))
    for name in UNIT.split():
        yield s(name, f(5, 2, low=0.1, high=0.9))
    for name in COMPLEX.split():
        yield s(name, c(3, 4))
    for special in (float("nan"), float("inf"), -float("inf")):
        for name in MONOTONE.split():
            yield s(name, torch.tensor([[1.0, special, -2.0], [0.0, 0.5, special]]))
    yield s("exp", f(0, 3))
    yield s("abs", i(4, 3))
    yield s("mvlgamma", f(4, 5, low=3, high=5), 2)
    yield s("rrelu_with_noise_functional", f(4, 5), f(4, 5))
    yield s("leaky_relu", f(4, 5), -0.3)
    yield s("fill.Tensor", f(4, 5), f())
    yield s("bitwise_not", i(4, 3))
    yield s("clone", i(7))
    yield s("neg", f(3, dtype=torch.float16))
    yield s("relu", i(3, 4))
    yield s("round.decimals", f(4, 5), decimals=1)
    yield s("clamp", f(4, 5), min=-1, max=1.5)
    yield s("clamp", f(4, 5), max=0.5)
    yield s("clamp_max", f(4, 5), 0.5)
    yield s("clamp_min", f(4, 5), -0.5)
    yield s("gelu", f(4, 5), approximate="tanh")
    yield s("threshold", f(4, 5), 0.1, 0.0)
    yield s("polygamma", 1, f(4, 5, low=0.5))
    yield s("sin", f())


def binary() -> Iterator[Sample]:
    """Yields samples of ops of two tensors, or a tensor and a scalar."""
    for name in BINARY.split():
        yield s(name, f(4, 5), f(5))
        yield s(name, f(1, 3), f(4, 1))
    for name in COMPARE.split():
        yield s(f"{name}.Tensor", i(4, 5), i(1, 5))
        yield s(f"{name}.Scalar", i(4, 5), 2)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield s(f"{name}.Tensor", i(4, 5), i(5))
        yield s(f"{name}.Tensor", b(4, 5), b(4, 1))
        yield s(f"{name}.Scalar", i(4, 5), 3)
        yield s(f"{name}.Scalar_Tensor", 3, i(4, 5))
    for name in ("logical_and", "logical_or"):
        yield s(name, b(4, 5), b(4, 5))
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        yield s(f"{name}.Tensor", i(4, 5), i(5, low=0, high=3))
        yield s(f"{name}.Tensor_Scalar", i(4, 5), 2)
        yield s(f"{name}.Scalar_Tensor", 5, i(4, 5, low=0, high=3))
    for name in POLYNOMIALS.split():
        yield s(name, f(4, 5, low=-1, high=1), i(5, low=0, high=4))
        yield s(f"{name}.n_scalar", f(4, 5, low=-1, high=1), 3)
        yield s(f"{name}.x_scalar", 0.3, i(4, 5, low=0, high=4))
    yield s("special_xlog1py", f(4, 1), f(5, low=0.5))
    yield s("special_xlog1py.self_scalar", 2.0, f(4, 5, low=0.5))
    yield s("special_xlog1py.other_scalar", f(4, 5), 2.0)
    yield s("special_zeta.self_scalar", 3.0, f(4, 5, low=0.5))
    yield s("special_zeta.other_scalar", f(4, 5, low=1.5), 2.0)
    yield s("ldexp.Tensor", f(4, 5), i(5, low=0, high=3))
    for name in ("maximum", "minimum", "clamp_min.Tensor"):
        yield s(name, torch.tensor([1.0, float("nan"), 2.0, float("inf")]), f(3, 4, dtype=F32))
    for name in ("__lshift__", "__rshift__"):
        yield s(f"{name}.Tensor", i(4, 5), i(5, low=0, high=3))
        yield s(f"{name}.Scalar", i(4, 5), 2)
    for name in ("gcd", "lcm"):
        yield s(name, i(4, 5, low=1), i(4, 1, low=1))
    for name in ("igamma", "igammac", "special_zeta"):
        yield s(name, f(4, 5, low=1.5, high=4), f(5, low=0.5))
    yield s("copysign.Tensor", f(4, 5), f(5))
    yield s("copysign.Scalar", f(4, 5), -1.0)
    yield s("xlogy.Tensor", f(4, 5), f(5, low=0.5))
    yield s("xlogy.Scalar_Self", 2.0, f(4, 5, low=0.5))
    yield s("xlogy.Scalar_Other", f(4, 5), 2.0)
    yield s("complex", f(3, 4), f(3, 4))
    yield s("polar", f(3, 4), f(3, 4))
    yield s("_prelu_kernel", f(3, 4), f(1, 4))


def arithmetic() -> Iterator[Sample]:
    """Yields samples of sums, products and powers."""
    shapes = (((4, 5), (4, 5)), ((4, 1, 3), (5, 1)), ((), (6,)), ((2, 3), ()), ((0, 3), (1, 3)))
    for left, right in shapes:
        for name in ("add", "sub", "mul", "div", "rsub", "pow"):
            overload = "Tensor_Tensor" if name == "pow" else "Tensor"
            yield s(f"{name}.{overload}", f(*left, low=0.5), f(*right, low=0.5))
    yield s("add.Tensor", f(4, 5), f(5), alpha=-2)
    yield s("sub.Tensor", i(4, 5), i(5), alpha=3)
    yield s("rsub.Tensor", f(4, 5), f(5), alpha=3)
    yield s("add.Tensor", f(4, 5), 2.5)
    yield s("mul.Tensor", f(4, 5), 2.5)
    yield s("div.Tensor", i(4, 5), 2)
    yield s("mul.Tensor", i(4, 5), f(5, dtype=torch.float32))
    yield s("add.Tensor", i(4, 5), f(4, 5, dtype=torch.float32))
    for name in ("add", "sub", "rsub"):
        yield s(f"{name}.Scalar", f(4, 5), 2.5)
        yield s(f"{name}.Scalar", f(4, 5), 2.5, -2)
        yield s(f"{name}.Scalar", i(4, 5), 2)
    yield s("add.Scalar", f(4, 5), float("inf"))
    yield s("mul.Scalar", f(4, 5), -3)
    yield s("mul.Scalar", f(4, 5), 3)
    yield s("mul.Scalar", c(4, 5), 2.5)
    yield s("mul.Scalar", f(4, 5), complex(1, 2))
    yield s("mul.Tensor", c(4, 5), f(5))
    yield s("mul.Tensor", b(4, 5), b(5))
    yield s("add.Tensor", c(4, 5), f(4, 1))
    yield s("mul.Scalar", i(4, 5), 2.5)
    yield s("div.Scalar", f(4, 5), 3)
    for mode in ("floor", "trunc", None):
        yield s("div.Tensor_mode", f(4, 5), f(5, low=0.5), rounding_mode=mode)
        yield s("div.Scalar_mode", f(4, 5), 0.7, rounding_mode=mode)
    yield s("floor_divide", i(4, 5), i(5, low=1))
    yield s("floor_divide.Scalar", f(4, 5), 0.7)
    yield s("pow.Tensor_Scalar", f(4, 5), 2)
    yield s("pow.Scalar", 2.0, f(4, 5))
    for name in ("fmod", "remainder"):
        yield s(f"{name}.Tensor", i(4, 5), i(5, low=1))
        yield s(f"{name}.Scalar", f(4, 5), 0.7)
    yield s("remainder.Scalar_Tensor", 7, i(4, 5, low=1))
    yield s("clamp.Tensor", f(4, 5), min=f(5, high=-1), max=f(4, 1, low=1))
    yield s("clamp.Tensor", f(4, 5), max=f(4, 1, low=1))
    yield s("clamp_max.Tensor", f(4, 5), f(5))
    yield s("clamp_min.Tensor", f(4, 5), f(5))
    yield s("lerp.Scalar", f(4, 5), f(4, 5), 0.3)
    yield s("lerp.Tensor", f(4, 5), f(4, 5), f(5))
    yield s("addcmul", f(4, 5), f(5), f(4, 1), value=2)
    yield s("addcdiv", f(4, 5), f(5), f(4, 1, low=0.5), value=2)


def choice() -> Iterator[Sample]:
    """Yields samples of ops that pick elements."""
    yield s("where.self", b(4, 5), f(4, 5), f(5))
    yield s("where.self", b(4, 1), i(5), i(4, 5))
    yield s("where.self", b(5), b(4, 5), b(4, 5))
    yield s("where.ScalarOther", b(4, 5), f(4, 5), 1.0)
    yield s("where.ScalarSelf", b(4, 5), 1.0, f(4, 5))
    yield s("where.Scalar", b(4, 5), 1.0, 2.0)
    yield s("masked_fill.Scalar", f(4, 5), b(5), 0)
    yield s("masked_fill.Scalar", f(4, 5), b(4, 5), -1.5)
    yield s("masked_fill.Tensor", f(4, 5), b(4, 5), f())
    yield s("copy", f(4, 5), f(5))
    yield s("copy", f(4, 5), i(4, 5))
    yield s("fill.Scalar", f(4, 5), 3)


def backward() -> Iterator[Sample]:
    """Yields samples of gradients."""
    g, x = f(4, 5), f(5, 4).T.contiguous()
    for name in ["gelu", "silu", "mish", "hardswish", "hardsigmoid"]:
        yield s(f"{name}_backward", g, x)
    yield s("elu_backward", g, 1.0, 1.0, 1.0, False, x)
    yield s("hardshrink_backward", g, x, 0.5)
    yield s("softshrink_backward", g, x, 0.5)
    yield s("log_sigmoid_backward", g, x, x.exp())
    yield s("rrelu_with_noise_backward", g, x, f(4, 5, low=0), 0.1, 0.3, True, False)
    yield s("_prelu_kernel_backward", g, x, f(1, 5))
    yield s("hardtanh_backward", g, x, -1.0, 1.0)
    yield s("leaky_relu_backward", g, x, 0.1, False)
    yield s("logit_backward", g, f(4, 5, low=0.1, high=0.9))
    yield s("native_dropout_backward", g, b(4, 5), 2.0)
    for name in ("sigmoid_backward", "tanh_backward"):
        yield s(name, g, x.sigmoid())
    yield s("softplus_backward", g, x, 1.0, 20.0)
    yield s("threshold_backward", g, x, 0.0)


def casts() -> Iterator[Sample]:
    """Yields samples of conversions."""
    yield s("_to_copy", f(4, 5), dtype=torch.float32)
    yield s("_to_copy", f(4, 5, dtype=torch.float32), dtype=torch.bfloat16)
    yield s("_to_copy", f(4, 5), dtype=torch.int32)
    yield s("_to_copy", i(4, 5), dtype=torch.float32)
    yield s("_to_copy", i(4, 5), dtype=torch.int64)
    yield s("_to_copy", i(4, 5), dtype=torch.int8)
    yield s("_to_copy", b(4, 5), dtype=torch.float32)
    yield s("to.dtype", f(4, 5), torch.float32)
    yield s("prims.convert_element_type", f(4, 5), torch.float32)
    yield s("view.dtype", f(4, 5), torch.int64)
    yield s("view.dtype", f(4, 5), torch.int32)
    yield s("view.dtype", i(4, 6, dtype=torch.int16), torch.float32)
