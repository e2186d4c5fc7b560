"""Vector norms of every order, and ops that scale by them.

The orders 0, 1, inf and -inf are reductions by a monoid. The others are roots of a sum of powers:
their bodies add up powers, which may be split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autopar.ir.dtypes import COMPLEX
from autopar.ir.ops.body import BodyWriter, accumulate_dtype, with_bodies
from autopar.ir.ops.elementwise.pointwise import broadcast_dims
from autopar.ir.ops.reduce.reduction import DimsOf, all_dims, listed_dims, reduced, reduction
from autopar.ir.ops.shape.sizes import broadcast
from autopar.ir.ops.table import RuleFunction, Table, axis, dense, factors, pending, same
from autopar.ir.program import Arg, Ref
from autopar.ir.rules.rule import SAME, Dims, OpCall, Rule, build_rule

MONOIDS = {0.0: "sum", 1.0: "sum", math.inf: "max", -math.inf: "min"}
"""The orders whose norm is a reduction of absolute values."""


def order_of(call: OpCall, name: str) -> float | None:
    """Returns the order of a norm, by default 2; None if it isn't a number."""
    order = call.args.get(name)
    if order is None:
        return 2.0
    return float(order) if isinstance(order, (int, float)) else None


def norm(dims_of: DimsOf, order_name: str = "p") -> RuleFunction:
    """Returns the rule function of a norm over the dimensions `dims_of`."""

    def rule(call: OpCall) -> Rule | None:
        order, gone = order_of(call, order_name), sorted(dims_of(call))
        if order is None:
            return None
        operand, result = reduced(call, gone)
        names = [f"i{at}" for at in gone]

        def write(w: BodyWriter) -> None:
            _write_result(w, w.required("self"), gone, order)

        return _norm_rule(call, [operand], result, names, order, write)

    return rule


def distance(call: OpCall) -> Rule | None:
    """aten.dist: the norm of a difference; the operands broadcast."""
    order = order_of(call, "p")
    if order is None:
        return None
    shape = broadcast([operand.shape for operand in call.operands])
    operands = [broadcast_dims(operand.shape, shape) for operand in call.operands]
    names = [f"i{at}" for at in range(len(shape))]

    def write(w: BodyWriter) -> None:
        args = {name: Ref(w.required(name)) for name in ("self", "other")}
        found = w.emit("aten.sub.Tensor", args, shape, w.value(w.op.results[0]).dtype)
        _write_result(w, found, range(len(shape)), order)

    return _norm_rule(call, operands, (), names, order, write)


def _norm_rule(
    call: OpCall,
    operands: Sequence[Dims],
    result: Dims,
    names: Sequence[str],
    order: float,
    write: Callable[[BodyWriter], None],
) -> Rule:
    """Returns the rule of a norm over the factors `names`, with a body where it needs one."""
    monoid = MONOIDS.get(order)

    def make(split: bool) -> Rule:
        whole = () if split else names
        reduce = dict.fromkeys(names, monoid or SAME)
        return build_rule(call, operands, [result], reduce=reduce, whole=whole, work=3)

    return make(True) if monoid else with_bodies(make, "powers", write)


def _write_result(w: BodyWriter, x: str, dims: Sequence[int], order: float) -> None:
    target = w.value(w.op.results[0])
    found = write_norm(w, x, dims, order, target.dtype)
    w.reshape(w.cast(found, target.dtype), target.global_shape, target.name)


def write_norm(w: BodyWriter, x: str, dims: Sequence[int], order: float, dtype: str) -> str:
    """Writes a norm that keeps the dimensions it reduces as size 1.

    Args:
        w: The body.
        x: What it is the norm of.
        dims: The dimensions that are reduced.
        order: The order.
        dtype: Dtype of the norm; returned is the one in which it is accumulated.
    """
    if w.value(x).dtype in COMPLEX and dtype not in COMPLEX:
        x = w.emit("aten.abs.default", {"self": Ref(x)}, w.value(x).global_shape, dtype)
    x = w.cast(x, accumulate_dtype(dtype))
    if order == 2:
        total = w.reduce("aten.sum.dim_IntList", w.combine("aten.mul.Tensor", x, x), dims)
        return w.like("aten.sqrt.default", total)
    size = w.like("aten.abs.default", x)
    if order in (math.inf, -math.inf):
        return w.reduce("aten.amax.default" if order > 0 else "aten.amin.default", size, dims)
    if order == 1:
        return w.reduce("aten.sum.dim_IntList", size, dims)
    powers = w.like("aten.pow.Tensor_Scalar", size, exponent=order)
    total = w.reduce("aten.sum.dim_IntList", powers, dims)
    return w.like("aten.pow.Tensor_Scalar", total, exponent=1 / order)


def renorm(call: OpCall) -> Rule | None:
    """aten.renorm: slices along `dim` whose norm exceeds `maxnorm` are scaled down to it."""
    shape, dtype = call.operands[0].shape, call.operands[0].dtype
    order, limit = order_of(call, "p"), call.args.get("maxnorm")
    at, dims = axis(call, len(shape)), factors("i", len(shape))
    others = [n for n in range(len(shape)) if n != at]
    if order is None or not isinstance(limit, (int, float)):
        return None

    def make(split: bool) -> Rule:
        whole = () if split else [f"i{n}" for n in others]
        return build_rule(call, [dims], [dims], whole=whole, work=4)

    def write(w: BodyWriter) -> None:
        x = w.cast(w.required("self"), accumulate_dtype(dtype))
        size = write_norm(w, x, others, order, w.value(x).dtype)
        shape = w.value(size).global_shape
        exceeds = w.emit("aten.gt.Scalar", {"self": Ref(size), "other": limit}, shape, "bool")
        # The same small number as in torch's kernel.
        shifted = w.like("aten.add.Scalar", size, other=1e-7)
        ratio = w.like("aten.mul.Scalar", w.like("aten.reciprocal.default", shifted), other=limit)
        args: dict[str, Arg] = {"condition": Ref(exceeds), "self": Ref(ratio), "other": 1.0}
        factor = w.emit("aten.where.ScalarOther", args, shape, w.value(x).dtype)
        w.cast(w.combine("aten.mul.Tensor", x, factor), dtype, w.op.results[0])

    ordinary = order > 0 and dtype not in COMPLEX
    return with_bodies(make, "norms", write) if ordinary else make(False)


def _weight_dims(call: OpCall) -> tuple[Dims, Dims, list[int]]:
    """Returns the factors of a weight and of its norms, and the dimensions a norm reduces."""
    rank = len(call.operands[0].shape)
    at, dims = axis(call, rank), factors("i", rank)
    others = [n for n in range(rank) if n != at]
    return dims, tuple(dim if n == at else () for n, dim in enumerate(dims)), others


def weight_norm(call: OpCall) -> Rule | None:
    """aten._weight_norm_interface: `v * (g / norm of v)`, and the norms, one per entry of `dim`."""
    dims, kept, others = _weight_dims(call)

    def make(split: bool) -> Rule:
        names = [f"i{n}" for n in others]
        reduce = {(name, 1): SAME for name in names}
        whole = () if split else names
        return build_rule(call, [dims, kept], [dims, kept], reduce=reduce, whole=whole, work=4)

    def write(w: BodyWriter) -> None:
        weight, norms = (w.value(name) for name in w.op.results)
        wide = accumulate_dtype(weight.dtype)
        v, g = (w.cast(w.required(name), wide) for name in "vg")
        size = write_norm(w, v, others, 2, wide)
        scaled = w.combine("aten.mul.Tensor", v, w.combine("aten.div.Tensor", g, size))
        w.cast(scaled, weight.dtype, weight.name)
        w.cast(size, norms.dtype, norms.name)

    return with_bodies(make, "norms", write)


def weight_norm_backward(call: OpCall) -> Rule | None:
    """aten._weight_norm_interface_backward: the gradients of `v` and `g`."""
    dims, kept, others = _weight_dims(call)

    def make(split: bool) -> Rule:
        names = [f"i{n}" for n in others]
        return build_rule(
            call,
            [dims, dims, kept, kept],
            [dims, kept],
            reduce={(name, 1): SAME for name in names},
            whole=() if split else names,
            linear=(pending(0),),
            work=6,
        )

    def write(w: BodyWriter) -> None:
        wide = accumulate_dtype(call.operands[0].dtype)
        names = ("grad_w", "saved_v", "saved_g", "saved_norms")
        grad, v, g, size = (w.cast(w.required(name), wide) for name in names)
        total = w.reduce("aten.sum.dim_IntList", w.combine("aten.mul.Tensor", grad, v), others)
        slope = w.combine("aten.div.Tensor", total, size)
        along = w.combine("aten.mul.Tensor", v, w.combine("aten.div.Tensor", slope, size))
        ratio = w.combine("aten.div.Tensor", g, size)
        across = w.combine("aten.sub.Tensor", grad, along)
        found = w.combine("aten.mul.Tensor", across, ratio)
        for value, name in zip((found, slope), w.op.results, strict=True):
            w.cast(value, w.value(name).dtype, name)

    return with_bodies(make, "norms", write)


RULES: Table = {
    "aten.linalg_vector_norm.default": norm(listed_dims, "ord"),
    "aten.linalg__powsum.default": reduction(listed_dims, "sum"),
    **same(["aten.norm.ScalarOpt_dim", "aten.norm.ScalarOpt_dim_dtype"], norm(listed_dims)),
    **same(["aten.norm.Scalar", "aten.norm.ScalarOpt_dtype"], norm(all_dims)),
    "aten.dist.default": distance,
    "aten.renorm.default": renorm,
    "aten._weight_norm_interface.default": dense(weight_norm),
    "aten._weight_norm_interface_backward.default": dense(weight_norm_backward),
}
