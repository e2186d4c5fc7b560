"""Losses between elements, or of the scores in a row, and their gradients.

A mean over a split tensor isn't a sum of the parts' means: a body takes the sum, which may stay
pending, and divides by the count of all elements.
"""

from __future__ import annotations

from autopar.ir.expr.expression import prod
from autopar.ir.ops.body import BodyWriter, with_bodies
from autopar.ir.ops.elementwise.pointwise import broadcast_dims
from autopar.ir.ops.losses.nll import MEAN, NONE, SUM
from autopar.ir.ops.table import Table, operand_dims, pending, same
from autopar.ir.program import Arg, Ref
from autopar.ir.rules.rule import Dims, OpCall, Rule, build_rule


def elementwise_loss(call: OpCall) -> Rule | None:
    """A loss per element, its sum, or its mean."""
    first, second = (operand.shape for operand in call.operands[:2])
    if first != second:
        return None
    dims = broadcast_dims(first, first)
    operands = [broadcast_dims(operand.shape, first) for operand in call.operands]
    reduction = call.integer("reduction", MEAN)
    names = [name for (name,) in dims]

    def make(split: bool) -> Rule:
        return build_rule(
            call,
            operands,
            [dims if reduction == NONE else ()],
            reduce=dict.fromkeys(names, "sum"),
            whole=names if reduction == MEAN and not split else (),
            work=3,
        )

    def write(w: BodyWriter) -> None:
        target = w.value(w.op.results[0])
        args = {**dict(w.op.args), "reduction": SUM}
        total = w.emit(w.op.kind, args, (), target.dtype)
        w.like("aten.div.Scalar", total, target.name, other=prod(first))

    return with_bodies(make, "sum", write)


def elementwise_loss_backward(call: OpCall) -> Rule | None:
    """The gradient of such a loss, with `grad_output` per element or one for all."""
    shape = call.results[0].shape
    if any(len(operand.shape) > len(shape) for operand in call.operands):
        return None
    dims = broadcast_dims(shape, shape)
    operands = [broadcast_dims(operand.shape, shape) for operand in call.operands]
    reduction = call.integer("reduction", MEAN)
    names = [name for (name,) in dims]
    gradient = call.positions["grad_output"][0]

    def make(split: bool) -> Rule:
        return build_rule(
            call,
            operands,
            [dims],
            whole=names if reduction == MEAN and not split else (),
            linear=(pending(gradient),),
            work=3,
        )

    def write(w: BodyWriter) -> None:
        gradient = w.required("grad_output")
        share = w.like("aten.div.Scalar", gradient, other=prod(shape))
        args: dict[str, Arg] = {**dict(w.op.args), "grad_output": Ref(share), "reduction": SUM}
        w.emit_all(w.op.kind, args)

    return with_bodies(make, "sum", write)


def margin_loss(call: OpCall) -> Rule | None:
    """aten.multi_margin_loss and multilabel_margin_loss_forward: scores of a row are compared."""
    operands = _rows(call)
    if operands is None:
        return None
    count = call.operands[0].shape[0]
    batch: Dims = operands[0][:-1]
    reduction = call.integer("reduction", MEAN)
    results: list[Dims] = [batch if reduction == NONE else (), operands[0]]

    def make(split: bool) -> Rule:
        return build_rule(
            call,
            operands,
            results[: len(call.results)],
            reduce={"n": "sum"},
            whole=("c", "k", *(("n",) if reduction == MEAN and not split else ())),
            work=3,
            aside=("k",),
        )

    def write(w: BodyWriter) -> None:
        target = w.value(w.op.results[0])
        total = w.emit(w.op.kind, {**dict(w.op.args), "reduction": SUM}, (), target.dtype)
        w.like("aten.div.Scalar", total, target.name, other=count)

    return with_bodies(make, "sum", write) if len(call.results) == 1 else make(False)


def margin_loss_backward(call: OpCall) -> Rule | None:
    """The gradient of such a loss."""
    operands = _rows(call)
    if operands is None:
        return None
    scores = operands[call.positions["self"][0]]
    count = call.results[0].shape[0]
    reduction = call.integer("reduction", MEAN)

    def make(split: bool) -> Rule:
        whole = ("c", "k", *(("n",) if reduction == MEAN and not split else ()))
        return build_rule(
            call, operands, [scores], whole=whole, linear=(pending(0),), work=3, aside=("k",)
        )

    def write(w: BodyWriter) -> None:
        share = w.like("aten.div.Scalar", w.required("grad_output"), other=count)
        args: dict[str, Arg] = {**dict(w.op.args), "grad_output": Ref(share), "reduction": SUM}
        w.emit_all(w.op.kind, args)

    return with_bodies(make, "sum", write)


def _rows(call: OpCall) -> list[Dims] | None:
    """Returns the operands' factors: scores are `n c`, targets `n` or `n c`, weights `k`."""
    scores = call.tensor("self")
    target = call.tensor("target")
    if scores is None or target is None or len(scores.shape) != 2:
        return None
    gradient = call.tensor("grad_output")
    by_name: dict[str, Dims] = {
        "grad_output": (("n",),) if gradient is not None and gradient.shape else (),
        "self": (("n",), ("c",)),
        "target": (("n",), ("c",))[: len(target.shape)],
        "weight": (("k",),),
        "is_target": (("n",), ("c",)),
    }
    return operand_dims(call, by_name)


_KINDS = ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy")

RULES: Table = {
    **same([f"aten.{kind}.default" for kind in _KINDS], elementwise_loss),
    "aten.binary_cross_entropy_with_logits.default": elementwise_loss,
    **same([f"aten.{kind}_backward.default" for kind in _KINDS], elementwise_loss_backward),
    **same(
        ["aten.multi_margin_loss.default", "aten.multilabel_margin_loss_forward.default"],
        margin_loss,
    ),
    **same(
        ["aten.multi_margin_loss_backward.default", "aten.multilabel_margin_loss_backward.default"],
        margin_loss_backward,
    ),
}
