"""Takes ops on lists of tensors apart, into one op for each tensor.

Optimizers call `_foreach_add` and the like to spare launches of kernels. For a compiler the list
would tie together tensors that have nothing to do with each other: one op has one layout. Fused
steps (`_fused_adam`) exist on lists alone, so each tensor gets one on lists of one entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autopar.ir.ops.elementwise.optimizer import FUSED_STEPS
from autopar.ir.program import Arg, Op

_UNARY = """abs acos asin atan ceil clone cos cosh erf erfc exp expm1 floor frac lgamma log log10
log1p log2 neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"""

_BOUNDS = {
    "clamp_max": ("clamp_max.Tensor", "clamp_max.default", "max"),
    "clamp_min": ("clamp_min.Tensor", "clamp_min.default", "min"),
    "maximum": ("clamp_min.Tensor", "clamp_min.default", "min"),
    "minimum": ("clamp_max.Tensor", "clamp_max.default", "max"),
}


def _rows() -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yields an op on lists, the op on tensors, and the arguments whose names differ."""
    for name in _UNARY.split():
        yield f"{name}.default", f"{name}.default", {}
    for name in ("add", "sub", "mul", "div"):
        yield f"{name}.List", f"{name}.Tensor", {}
        yield f"{name}.Scalar", f"{name}.Scalar", {"scalar": "other"}
        yield f"{name}.ScalarList", f"{name}.Scalar", {"scalars": "other"}
    for name in ("add", "mul", "div"):
        yield f"{name}.Tensor", f"{name}.Tensor", {}
    for name, (tensor, scalar, bound) in _BOUNDS.items():
        yield f"{name}.List", tensor, {"other": bound}
        yield f"{name}.Scalar", scalar, {"scalar": bound}
        yield f"{name}.ScalarList", scalar, {"scalars": bound}
    for name in ("addcmul", "addcdiv"):
        yield f"{name}.Scalar", f"{name}.default", {}
        yield f"{name}.ScalarList", f"{name}.default", {"scalars": "value"}
    yield "pow.List", "pow.Tensor_Tensor", {}
    yield "pow.Scalar", "pow.Tensor_Scalar", {}
    yield "pow.ScalarList", "pow.Tensor_Scalar", {}
    yield "pow.ScalarAndTensor", "pow.Scalar", {}
    yield "lerp.List", "lerp.Tensor", {"tensors1": "end", "weights": "weight"}
    yield "lerp.Scalar", "lerp.Scalar", {"tensors1": "end"}
    yield "lerp.ScalarList", "lerp.Scalar", {"tensors1": "end"}
    yield "max.default", "max.default", {}
    yield "norm.Scalar", "linalg_vector_norm.default", {}
    yield "powsum.Scalar", "linalg__powsum.default", {}
    yield "copy.default", "copy.default", {}
    yield "zero.default", "zeros_like.default", {}


SINGLE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    f"aten._foreach_{many}": (f"aten.{one}", renamed) for many, one, renamed in _rows()
}
"""Of an op on lists, the op on each tensor, and the arguments whose names differ."""


def singles(op: Op) -> list[Op]:
    """Returns the ops on single tensors that an op on lists stands for; any other op as it is."""
    if op.kind in FUSED_STEPS:
        return _single_steps(op)
    if op.kind not in SINGLE:
        return [op]
    kind, renamed = SINGLE[op.kind]
    return [
        replace(
            op,
            kind=kind,
            args=tuple((renamed.get(name, name), _entry(arg, at)) for name, arg in op.args),
            results=(result,),
        )
        for at, result in enumerate(op.results)
    ]


def _single_steps(op: Op) -> list[Op]:
    """Returns the steps of single parameters. Results are lists too, one behind the other."""
    parameters = op.arg("self")
    count = len(parameters) if isinstance(parameters, tuple) else 0
    return [
        replace(
            op,
            args=tuple(
                (name, arg[at : at + 1] if isinstance(arg, tuple) else arg) for name, arg in op.args
            ),
            results=op.results[at::count],
        )
        for at in range(count)
    ]


def _entry(arg: Arg, at: int) -> Arg:
    """Returns an argument of one of the ops. All lists are as long as that of tensors."""
    return arg[at] if isinstance(arg, tuple) else arg
