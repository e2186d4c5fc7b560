"""Softmax and its gradients. Where the dimension is split, bodies reduce over it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from autopar.ir.ops.body import BodyWriter, accumulate_dtype, with_bodies
from autopar.ir.ops.table import Over, RuleFunction, Table, axis, dense, factors, pending
from autopar.ir.program import Ref
from autopar.ir.rules.rule import Dims, OpCall, Rule, build_rule


def softmax(log: bool) -> RuleFunction:
    """Returns the rule function of aten._softmax, or of _log_softmax, along `dim`."""

    def rule(call: OpCall) -> Rule | None:
        at = axis(call, len(call.operands[0].shape), default=-1)

        def write(w: BodyWriter) -> None:
            target = w.value(w.op.results[0])
            wide = accumulate_dtype(target.dtype)
            x = w.cast(w.required("self"), wide)
            name = None if wide != target.dtype else target.name
            if log:
                found = write_log_softmax(w, x, at, name)
            else:
                _, powers, total = _powers(w, x, at)
                found = w.combine("aten.div.Tensor", powers, total, name)
            if name is None:
                w.cast(found, target.dtype, target.name)

        return with_bodies(partial(_normalized, call, at), "reduced", write)

    return rule


def _normalized(call: OpCall, at: int, split: bool) -> Rule:
    """Returns the rule of an op that normalizes along dimension `at`, which may be split or not."""
    dims = factors("i", len(call.operands[0].shape))
    whole = () if split or not dims else dims[at]
    return build_rule(call, [dims], [dims], whole=whole, work=5)


def _powers(w: BodyWriter, x: str, at: int) -> tuple[str, str, str]:
    """Adds `x` below its maximum along a dimension, the exponentials, and their sum."""
    shifted = w.combine("aten.sub.Tensor", x, w.highest(x, (at,)))
    powers = w.like("aten.exp.default", shifted)
    return shifted, powers, w.reduce("aten.sum.dim_IntList", powers, (at,))


def write_log_softmax(w: BodyWriter, x: str, at: int, result: str | None = None) -> str:
    """Adds the logarithm of the softmax of `x` along dimension `at`."""
    shifted, _, total = _powers(w, x, at)
    return w.combine("aten.sub.Tensor", shifted, w.like("aten.log.default", total), result)


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
            name = None if wide != target.dtype else target.name
            if log:
                mean = w.combine("aten.mul.Tensor", factor, total)
                found = w.combine("aten.sub.Tensor", gradient, mean, name)
            else:
                centered = w.combine("aten.sub.Tensor", gradient, total)
                found = w.combine("aten.mul.Tensor", centered, factor, name)
            if name is None:
                w.cast(found, target.dtype, target.name)

        return with_bodies(make, "reduced", write)

    return rule


def safe_softmax(call: OpCall) -> Rule | None:
    """aten._safe_softmax: rows of nothing but negative infinity become zero."""
    at = axis(call, len(call.operands[0].shape), default=-1)

    def write(w: BodyWriter) -> None:
        target = w.value(w.op.results[0])
        x = w.cast(w.required("self"), accumulate_dtype(target.dtype))
        peak = w.highest(x, (at,))
        args = {"self": Ref(peak)}
        nothing = w.emit("aten.isneginf.default", args, w.value(peak).global_shape, "bool")
        shift = w.like("aten.masked_fill.Scalar", peak, mask=Ref(nothing), value=0)
        powers = w.like("aten.exp.default", w.combine("aten.sub.Tensor", x, shift))
        total = w.reduce("aten.sum.dim_IntList", powers, (at,))
        divisor = w.like("aten.masked_fill.Scalar", total, mask=Ref(nothing), value=1)
        w.cast(w.combine("aten.div.Tensor", powers, divisor), target.dtype, target.name)

    return with_bodies(partial(_normalized, call, at), "reduced", write)


def masked_softmax(call: OpCall) -> Rule | None:
    """aten._masked_softmax and its gradient: the mask is that of scores, of keys, or as large."""
    shape, mask = call.operands[0].shape, call.operands[-1].shape
    if not shape:
        return None
    dims, last = factors("i", len(shape)), len(shape) - 1
    at = last if call.args.get("dim") is None else axis(call, len(shape))
    masked, whole = dims, [*dims[at]]
    if mask != shape:
        if len(shape) != 4 or len(mask) != 2:
            return None
        masked = dims[2:] if call.args.get("mask_type") == 0 else (dims[0], dims[3])
        # The kernel compares the sizes of the mask with those of queries and keys.
        whole = ["i2", "i3"]
    linear = (pending(0),) if "backward" in call.kind else ()
    operands: list[Dims] = [*(dims for _ in call.operands[:-1]), masked]
    return build_rule(call, operands, [dims], whole=whole, linear=linear, work=5)


OVER_GRADIENTS: Mapping[str, Over] = {
    "aten._softmax_backward_data.default": Over("grad_output", "out", "grad_input"),
    "aten._log_softmax_backward_data.default": Over("grad_output", "out", "out"),
}
"""Kernels sum a row up before they write it, and then read each element for the last time."""

RULES: Table = {
    "aten._softmax.default": softmax(log=False),
    "aten._log_softmax.default": softmax(log=True),
    "aten.softmax.int": softmax(log=False),
    "aten.log_softmax.int": softmax(log=True),
    "aten._safe_softmax.default": safe_softmax,
    "aten._softmax_backward_data.default": softmax_backward(log=False),
    "aten._log_softmax_backward_data.default": softmax_backward(log=True),
    "aten._masked_softmax.default": dense(masked_softmax),
    "aten._masked_softmax_backward.default": masked_softmax,
}
