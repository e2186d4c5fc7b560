"""Layer and RMS normalization. Where a normalized dimension is split, bodies reduce over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.ir.expr.expression import IntExpr, prod
from autopar.ir.ops.body import BodyWriter, accumulate_dtype, with_bodies
from autopar.ir.ops.shape.sizes import integers
from autopar.ir.ops.table import Table, dense, factors, operand_dims, pending, same
from autopar.ir.program import Arg
from autopar.ir.rules.rule import SAME, Dims, OpCall, Rule, build_rule


@dataclass(frozen=True, slots=True)
class Moments:
    """Names of the values that a normalization is made of.

    Attributes:
        mean: The mean.
        variance: The mean square deviation.
        centered: The deviations from the mean.
        scale: The reciprocal standard deviation.
    """

    mean: str
    variance: str
    centered: str
    scale: str


def write_mean(w: BodyWriter, x: str, dims: Sequence[int]) -> str:
    """Writes the mean along `dims`, kept as dimensions of size 1."""
    count = prod(w.value(x).global_shape[at] for at in dims)
    return w.like("aten.div.Scalar", w.reduce("aten.sum.dim_IntList", x, dims), other=count)


def write_moments(w: BodyWriter, x: str, dims: Sequence[int], eps: Arg) -> Moments:
    """Writes mean, variance, deviations and reciprocal standard deviation of `x` along `dims`."""
    mean = write_mean(w, x, dims)
    centered = w.combine("aten.sub.Tensor", x, mean)
    variance = write_mean(w, w.combine("aten.mul.Tensor", centered, centered), dims)
    shifted = w.like("aten.add.Scalar", variance, other=eps)
    return Moments(mean, variance, centered, w.like("aten.rsqrt.default", shifted))


def write_affine(w: BodyWriter, x: str, weight: str | None, bias: str | None) -> str:
    """Writes `x * weight + bias`, as far as there are any; they broadcast to `x`."""
    for kind, name in (("aten.mul.Tensor", weight), ("aten.add.Tensor", bias)):
        if name is not None:
            x = w.combine(kind, x, w.cast(name, w.value(x).dtype))
    return x


def write_gradient(
    w: BodyWriter, grad: str, normalized: str, scale: str, dims: Sequence[int]
) -> str:
    """Writes the gradient of a normalization's input.

    Args:
        w: The body.
        grad: Gradient of the normalized values, before weight and bias.
        normalized: The normalized values.
        scale: What deviations were multiplied by.
        dims: The dimensions that were normalized.
    """
    slope = write_mean(w, w.combine("aten.mul.Tensor", grad, normalized), dims)
    found = w.combine("aten.sub.Tensor", grad, w.combine("aten.mul.Tensor", normalized, slope))
    found = w.combine("aten.sub.Tensor", found, write_mean(w, grad, dims))
    return w.combine("aten.mul.Tensor", found, scale)


def write_sum(w: BodyWriter, x: str, dims: Sequence[int], result: str) -> None:
    """Writes a result that is the sum of `x` along `dims`, in the result's shape and dtype."""
    target = w.value(result)
    total = w.reduce("aten.sum.dim_IntList", x, dims) if dims else x
    w.reshape(w.cast(total, target.dtype), target.global_shape, result)


def unmasked(call: OpCall, results: Sequence[Dims]) -> list[Dims] | None:
    """Returns the results that `output_mask` asks for; None if there are others."""
    found = [dims for dims, keep in zip(results, mask_of(call), strict=False) if keep]
    return found if len(found) == len(call.results) else None


def mask_of(call: OpCall) -> tuple[bool, ...]:
    """Returns which results are asked for."""
    mask = call.args.get("output_mask")
    return tuple(map(bool, mask)) if isinstance(mask, tuple) else (True, True, True)


@dataclass(frozen=True)
class _Axes:
    """The dimensions of a tensor whose last ones are normalized, so many elements together."""

    lead: Dims
    normalized: Dims
    count: IntExpr

    @property
    def all(self) -> Dims:
        return (*self.lead, *self.normalized)

    @property
    def statistics(self) -> Dims:
        return (*self.lead, *((),) * len(self.normalized))

    @property
    def names(self) -> list[str]:
        return [name for (name,) in self.normalized]

    @property
    def positions(self) -> range:
        return range(len(self.lead), len(self.all))


def _axes(call: OpCall, operand: int) -> _Axes:
    shape = call.operands[operand].shape
    dims = factors("i", len(shape))
    lead = len(dims) - len(integers(call, "normalized_shape"))
    return _Axes(dims[:lead], dims[lead:], prod(shape[lead:]))


def layer_norm(call: OpCall) -> Rule | None:
    """aten.native_layer_norm: results are the output, the mean and the reciprocal deviation."""
    dims = _axes(call, 0)
    results = [dims.all] + [dims.statistics] * (len(call.results) - 1)
    by_name = {"input": dims.all, "weight": dims.normalized, "bias": dims.normalized}
    operands = operand_dims(call, by_name)

    def make(split: bool) -> Rule:
        reduce = {(name, at): SAME for name in dims.names for at in (1, 2)}
        whole = () if split else dims.names
        return build_rule(call, operands, results, reduce=reduce, whole=whole, work=8)

    def write(w: BodyWriter) -> None:
        targets = [w.value(name) for name in w.op.results]
        x = w.cast(w.required("input"), accumulate_dtype(targets[0].dtype))
        moments = write_moments(w, x, dims.positions, w.op.arg("eps", 1e-5))
        found = w.combine("aten.mul.Tensor", moments.centered, moments.scale)
        found = write_affine(w, found, w.name("weight"), w.name("bias"))
        for value, target in zip((found, moments.mean, moments.scale), targets, strict=False):
            w.cast(value, target.dtype, target.name)

    return with_bodies(make, "moments", write)


def layer_norm_backward(call: OpCall) -> Rule | None:
    """aten.native_layer_norm_backward: the batch is summed in the gradients of weight and bias."""
    dims = _axes(call, 0)
    by_name = dict.fromkeys(("grad_out", "input"), dims.all)
    by_name |= dict.fromkeys(("mean", "rstd"), dims.statistics)
    by_name |= dict.fromkeys(("weight", "bias"), dims.normalized)
    results = unmasked(call, (dims.all, dims.normalized, dims.normalized))
    operands = operand_dims(call, by_name)
    if results is None:
        return None
    reduce = {name: "sum" for (name,) in dims.lead}

    def make(split: bool) -> Rule:
        whole = () if split else dims.names
        linear = (pending(0),)
        return build_rule(
            call, operands, results, reduce=reduce, whole=whole, linear=linear, work=10
        )

    def write(w: BodyWriter) -> None:
        _write_backward(w, dims, mask_of(call))

    return with_bodies(make, "moments", write)


def _write_backward(w: BodyWriter, dims: _Axes, mask: tuple[bool, ...]) -> None:
    wide = accumulate_dtype(w.value(w.required("grad_out")).dtype)
    names = ("grad_out", "input", "mean", "rstd")
    grad, x, mean, scale = (w.cast(w.required(name), wide) for name in names)
    normalized = w.combine("aten.mul.Tensor", w.combine("aten.sub.Tensor", x, mean), scale)
    lead, remaining = range(len(dims.lead)), list(w.op.results)
    if mask[0]:
        weighted = write_affine(w, grad, w.name("weight"), None)
        found = write_gradient(w, weighted, normalized, scale, dims.positions)
        target = w.value(remaining.pop(0))
        w.cast(found, target.dtype, target.name)
    if mask[1]:
        write_sum(w, w.combine("aten.mul.Tensor", grad, normalized), lead, remaining.pop(0))
    if mask[2]:
        write_sum(w, grad, lead, remaining.pop(0))


def rms_norm(call: OpCall) -> Rule | None:
    """aten.rms_norm and aten._fused_rms_norm (with the reciprocal root as a second result)."""
    dims = _axes(call, 0)
    results = [dims.all, dims.statistics][: len(call.results)]
    operands = operand_dims(call, {"input": dims.all, "weight": dims.normalized})
    wide = accumulate_dtype(call.operands[0].dtype)

    def make(split: bool) -> Rule:
        reduce = {(name, 1): SAME for name in dims.names}
        whole = () if split else dims.names
        return build_rule(call, operands, results, reduce=reduce, whole=whole, work=5)

    def write(w: BodyWriter) -> None:
        targets = [w.value(name) for name in w.op.results]
        x = w.cast(w.required("input"), wide)
        mean = write_mean(w, w.combine("aten.mul.Tensor", x, x), dims.positions)
        eps = w.op.arg("eps")
        shifted = w.like("aten.add.Scalar", mean, other=_EPSILON[wide] if eps is None else eps)
        root = w.like("aten.rsqrt.default", shifted)
        found = write_affine(w, w.combine("aten.mul.Tensor", x, root), w.name("weight"), None)
        for value, target in zip((found, root), targets, strict=False):
            w.cast(value, target.dtype, target.name)

    return with_bodies(make, "moments", write)


_EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}
"""The default `eps` of rms_norm is the machine epsilon."""

RULES: Table = {
    **same(["aten.native_layer_norm.default", "aten.layer_norm.default"], layer_norm),
    "aten.native_layer_norm_backward.default": dense(layer_norm_backward),
    **same(["aten.rms_norm.default", "aten._fused_rms_norm.default"], rms_norm),
}
