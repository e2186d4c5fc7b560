"""Softmax and normalizations. Where the normalized dimension is split, bodies reduce over it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.ir.ops.body import BodyWriter, accumulate_dtype, with_bodies
from autopar.ir.ops.reduction import along, last_dim
from autopar.ir.ops.table import RuleFunction, Table, axis, factors, operand_dims, pending, same
from autopar.ir.program import Arg
from autopar.ir.rule import SAME, Dims, OpCall, Rule, Size, build_rule


def softmax(log: bool) -> RuleFunction:
    """Returns the rule function of aten._softmax, or of _log_softmax, along `dim`."""

    def rule(call: OpCall) -> Rule | None:
        rank = len(call.operands[0].shape)
        at = axis(call, rank, default=-1)
        dims = factors("i", rank)

        def make(split: bool) -> Rule:
            whole = () if split or not rank else dims[at]
            return build_rule(call, [dims], [dims], whole=whole, work=5)

        def write(w: BodyWriter) -> None:
            target = w.value(w.op.results[0])
            wide = accumulate_dtype(target.dtype)
            x = w.cast(w.required("self"), wide)
            shifted = w.combine("aten.sub.Tensor", x, w.reduce("aten.amax.default", x, (at,)))
            powers = w.like("aten.exp.default", shifted)
            total = w.reduce("aten.sum.dim_IntList", powers, (at,))
            narrow = wide != target.dtype
            name = None if narrow else target.name
            if log:
                total = w.like("aten.log.default", total)
                found = w.combine("aten.sub.Tensor", shifted, total, name)
            else:
                found = w.combine("aten.div.Tensor", powers, total, name)
            if narrow:
                w.cast(found, target.dtype, target.name)

        return with_bodies(call, make, "reduced", write)

    return rule


def softmax_backward(log: bool) -> RuleFunction:
    """Returns the rule function of the gradient of aten._softmax, or of _log_softmax."""

    def rule(call: OpCall) -> Rule | None:
        rank = len(call.operands[0].shape)
        at = axis(call, rank)
        dims = factors("i", rank)

        def make(split: bool) -> Rule:
            whole = () if split or not rank else dims[at]
            linear = (pending(0),)
            return build_rule(call, [dims, dims], [dims], whole=whole, linear=linear, work=4)

        def write(w: BodyWriter) -> None:
            target = w.value(w.op.results[0])
            wide = accumulate_dtype(target.dtype)
            gradient, output = (w.cast(w.required(n), wide) for n in ("grad_output", "output"))
            factor = w.like("aten.exp.default", output) if log else output
            inner = gradient if log else w.combine("aten.mul.Tensor", gradient, factor)
            total = w.reduce("aten.sum.dim_IntList", inner, (at,))
            if log:
                found = w.combine(
                    "aten.sub.Tensor", gradient, w.combine("aten.mul.Tensor", factor, total)
                )
            else:
                found = w.combine(
                    "aten.mul.Tensor", w.combine("aten.sub.Tensor", gradient, total), factor
                )
            w.cast(found, target.dtype, target.name)

        return with_bodies(call, make, "reduced", write)

    return rule


def _moments(w: BodyWriter, x: str, dims: Sequence[int], eps: Arg) -> tuple[str, str, str]:
    """Writes mean, deviations from it, and the reciprocal standard deviation."""
    count = math.prod(w.value(x).global_shape[at] for at in dims)
    mean = w.like("aten.div.Scalar", w.reduce("aten.sum.dim_IntList", x, dims), other=count)
    centered = w.combine("aten.sub.Tensor", x, mean)
    squares = w.combine("aten.mul.Tensor", centered, centered)
    variance = w.like(
        "aten.div.Scalar", w.reduce("aten.sum.dim_IntList", squares, dims), other=count
    )
    shifted = w.like("aten.add.Scalar", variance, other=eps)
    return mean, centered, w.like("aten.rsqrt.default", shifted)


def _scale_and_shift(w: BodyWriter, x: str, weight: str | None, bias: str | None) -> str:
    for kind, name in (("aten.mul.Tensor", weight), ("aten.add.Tensor", bias)):
        if name is not None:
            x = w.combine(kind, x, w.cast(name, w.value(x).dtype))
    return x


def layer_norm(call: OpCall) -> Rule | None:
    """aten.native_layer_norm: results are the output, the mean and the reciprocal deviation."""
    rank, count = len(call.operands[0].shape), len(call.integers("normalized_shape"))
    dims = factors("i", rank)
    lead, normalized = dims[: rank - count], dims[rank - count :]
    names = [name for (name,) in normalized]
    statistics: Dims = (*lead, *((),) * count)
    results = [dims] + [statistics] * (len(call.results) - 1)
    operands = operand_dims(call, {"input": dims, "weight": normalized, "bias": normalized})

    def make(split: bool) -> Rule:
        reduce = {(name, at): SAME for name in names for at in (1, 2)}
        whole = () if split else names
        return build_rule(call, operands, results, reduce=reduce, whole=whole, work=8)

    def write(w: BodyWriter) -> None:
        targets = [w.value(name) for name in w.op.results]
        x = w.cast(w.required("input"), accumulate_dtype(targets[0].dtype))
        along = range(rank - count, rank)
        mean, centered, deviation = _moments(w, x, along, w.op.arg("eps", 1e-5))
        found = w.combine("aten.mul.Tensor", centered, deviation)
        found = _scale_and_shift(w, found, w.name("weight"), w.name("bias"))
        for value, target in zip((found, mean, deviation), targets, strict=False):
            w.cast(value, target.dtype, target.name)

    # The sizes of the normalized dimensions are an argument of the fused op.
    return with_bodies(call, make, "moments", write)


def layer_norm_backward(call: OpCall) -> Rule | None:
    """aten.native_layer_norm_backward: the batch is summed in the gradients of weight and bias."""
    rank, count = len(call.operands[0].shape), len(call.integers("normalized_shape"))
    dims = factors("i", rank)
    lead, normalized = dims[: rank - count], dims[rank - count :]
    statistics: Dims = (*lead, *((),) * count)
    operands = operand_dims(
        call,
        {
            "grad_out": dims,
            "input": dims,
            "mean": statistics,
            "rstd": statistics,
            "weight": normalized,
            "bias": normalized,
        },
    )
    results = _unmasked(call, (dims, normalized, normalized))
    if results is None:
        return None
    return build_rule(
        call,
        operands,
        results,
        reduce={name: "sum" for (name,) in lead},
        whole=[name for (name,) in normalized],
        linear=(pending(0),),
        work=10,
    )


def rms_norm(call: OpCall) -> Rule | None:
    """aten.rms_norm and aten._fused_rms_norm (with the reciprocal root as a second result)."""
    rank, count = len(call.operands[0].shape), len(call.integers("normalized_shape"))
    dims = factors("i", rank)
    lead, normalized = dims[: rank - count], dims[rank - count :]
    names = [name for (name,) in normalized]
    results: list[Dims] = [dims, (*lead, *((),) * count)][: len(call.results)]
    operands = operand_dims(call, {"input": dims, "weight": normalized})

    def make(split: bool) -> Rule:
        reduce = {(name, 1): SAME for name in names}
        whole = () if split else names
        return build_rule(call, operands, results, reduce=reduce, whole=whole, work=5)

    def write(w: BodyWriter) -> None:
        targets = [w.value(name) for name in w.op.results]
        x = w.cast(w.required("input"), accumulate_dtype(targets[0].dtype))
        along = range(rank - count, rank)
        size = math.prod(call.operands[0].shape[at] for at in along)
        squares = w.combine("aten.mul.Tensor", x, x)
        mean = w.like(
            "aten.div.Scalar", w.reduce("aten.sum.dim_IntList", squares, along), other=size
        )
        eps = w.op.arg("eps")
        shifted = w.like("aten.add.Scalar", mean, other=_EPSILON[x_type] if eps is None else eps)
        root = w.like("aten.rsqrt.default", shifted)
        found = _scale_and_shift(w, w.combine("aten.mul.Tensor", x, root), w.name("weight"), None)
        for value, target in zip((found, root), targets, strict=False):
            w.cast(value, target.dtype, target.name)

    x_type = accumulate_dtype(call.operands[0].dtype)
    return with_bodies(call, make, "moments", write)


_EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}
"""The default `eps` of rms_norm is the machine epsilon."""


def group_norm(call: OpCall) -> Rule | None:
    """aten.native_group_norm: groups of channels `(g c)` are normalized together."""
    groups, channels = call.integer("group", 1), call.integer("C", 1)
    shape = call.operands[0].shape
    if len(shape) < 2 or shape[:2] != (call.integer("N", 0), channels):
        return None
    space = factors("x", len(shape) - 2)
    both: Dims = (("g", "c"),)
    statistics: Dims = (("n",), ("g",))
    return build_rule(
        call,
        operand_dims(call, {"input": (("n",), *both, *space), "weight": both, "bias": both}),
        [(("n",), *both, *space), statistics, statistics][: len(call.results)],
        sizes={"g": groups},
        whole=("c", *(name for (name,) in space)),
        local={"N": Size(("n",)), "C": Size(("g", "c")), "group": Size(("g",))},
        work=8,
    )


def group_norm_backward(call: OpCall) -> Rule | None:
    """aten.native_group_norm_backward: the batch is summed in the gradients of weight and bias."""
    shape = call.operands[1].shape
    if len(shape) < 2 or shape[:2] != (call.integer("N", 0), call.integer("C", 0)):
        return None
    both: Dims = (("g", "c"),)
    space = factors("x", len(shape) - 2)
    dims: Dims = (("n",), *both, *space)
    statistics: Dims = (("n",), ("g",))
    by_name = {"grad_out": dims, "input": dims, "mean": statistics, "rstd": statistics}
    results = _unmasked(call, (dims, both, both))
    if results is None:
        return None
    return build_rule(
        call,
        operand_dims(call, {**by_name, "weight": both}),
        results,
        sizes={"g": call.integer("group", 1)},
        reduce={"n": "sum"},
        whole=("c", *(name for (name,) in space)),
        local={"N": Size(("n",)), "C": Size(("g", "c")), "group": Size(("g",))},
        linear=(pending(0),),
        work=10,
    )


def batch_norm_inference(call: OpCall) -> Rule | None:
    """Batch normalization with statistics that are given: a scale and shift per channel."""
    if call.flag("training") or call.tensor("running_mean") is None:
        # The others write the running statistics in place.
        pure = "functional" in call.kind or call.tensor("running_mean") is None
        return batch_norm_training(call) if pure else None
    rank = len(call.operands[0].shape)
    dims: Dims = (("n",), ("c",), *factors("x", rank - 2))
    results, unread = [dims], []
    for at, result in enumerate(call.results[1:], 1):
        saved = result.shape == call.results[0].shape[1:2]
        results.append((("c",),) if saved else factors(f"r{at}_", len(result.shape)))
        unread.extend([] if saved else [f"r{at}_0"])
    reduce = {name: SAME for (name,) in dims}
    return build_rule(call, _per_channel(call, dims), results, reduce=reduce, whole=unread, work=4)


def batch_norm_training(call: OpCall) -> Rule | None:
    """Batch normalization with statistics of the batch: only channels are independent."""
    rank = len(call.operands[0].shape)
    dims: Dims = (("n",), ("c",), *factors("x", rank - 2))
    channel: Dims = (("c",),)
    if any(len(result.shape) != 1 for result in call.results[1:]):
        return None
    results = [dims] + [channel] * (len(call.results) - 1)
    if any(result.shape != call.results[0].shape[1:2] for result in call.results[1:]):
        return None
    whole = ["n", *(name for (name,) in dims[2:])]
    return build_rule(call, _per_channel(call, dims), results, whole=whole, work=8)


def batch_norm_backward(call: OpCall) -> Rule | None:
    """aten.native_batch_norm_backward: only channels are independent if statistics are learned."""
    rank = len(call.operands[0].shape)
    dims: Dims = (("n",), ("c",), *factors("x", rank - 2))
    channel: Dims = (("c",),)
    saved = ("weight", "running_mean", "running_var", "save_mean", "save_invstd")
    operands = operand_dims(
        call, {"grad_out": dims, "input": dims, **dict.fromkeys(saved, channel)}
    )
    results = _unmasked(call, (dims, channel, channel))
    if results is None:
        return None
    whole = ["n", *(name for (name,) in dims[2:])]
    return build_rule(call, operands, results, whole=whole, linear=(pending(0),), work=10)


def _unmasked(call: OpCall, results: Sequence[Dims]) -> list[Dims] | None:
    """Returns the results that `output_mask` asks for; None if there are others."""
    mask = call.args.get("output_mask")
    kept = mask if isinstance(mask, tuple) else (True,) * len(results)
    found = [dims for dims, keep in zip(results, kept, strict=True) if keep]
    return found if len(found) == len(call.results) else None


def _per_channel(call: OpCall, dims: Dims) -> list[Dims]:
    names = ("weight", "bias", "running_mean", "running_var")
    return operand_dims(call, {"input": dims, **dict.fromkeys(names, (("c",),))})


RULES: Table = {
    "aten._softmax.default": softmax(log=False),
    "aten._log_softmax.default": softmax(log=True),
    "aten.softmax.int": softmax(log=False),
    "aten.log_softmax.int": softmax(log=True),
    "aten._safe_softmax.default": along(last_dim, work=5),
    "aten._softmax_backward_data.default": softmax_backward(log=False),
    "aten._log_softmax_backward_data.default": softmax_backward(log=True),
    "aten.native_layer_norm.default": layer_norm,
    "aten.layer_norm.default": layer_norm,
    "aten.native_layer_norm_backward.default": layer_norm_backward,
    **same(["aten.rms_norm.default", "aten._fused_rms_norm.default"], rms_norm),
    "aten.native_group_norm.default": group_norm,
    "aten.native_group_norm_backward.default": group_norm_backward,
    "aten.native_batch_norm_backward.default": batch_norm_backward,
    **same(
        [
            "aten.native_batch_norm.default",
            "aten._native_batch_norm_legit_no_training.default",
            "aten._native_batch_norm_legit_functional.default",
            "aten.batch_norm.default",
        ],
        batch_norm_inference,
    ),
    "aten._native_batch_norm_legit.no_stats": batch_norm_training,
}
