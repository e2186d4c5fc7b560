"""Losses."""

from __future__ import annotations

from autopar.ir.ops.pointwise import broadcast_dims
from autopar.ir.ops.table import Table, operand_dims, pending, same
from autopar.ir.rule import Dims, OpCall, Rule, build_rule

MEAN, SUM = 1, 2
"""Values of `reduction`; 0 is none."""


def nll_loss(call: OpCall) -> Rule | None:
    """aten.nll_loss_forward and nll_loss2d_forward: the loss, and the total weight of the targets.

    The mean divides by the total weight, so a mean over a split batch is not a sum of parts.
    """
    rank = len(call.operands[1].shape)
    batch = tuple((f"b{at}",) for at in range(rank))
    scores: Dims = (*batch[:1], ("c",), *batch[1:])
    operands = operand_dims(call, {"self": scores, "target": batch, "weight": (("c",),)})
    reduction = call.integer("reduction", MEAN)
    names = [name for (name,) in batch]
    result = batch if reduction == 0 else ()
    whole = ["c", *(names if reduction == MEAN else ())]
    return build_rule(
        call,
        operands,
        [result, ()],
        reduce=dict.fromkeys(names, "sum"),
        whole=whole,
    )


def nll_loss_backward(call: OpCall) -> Rule | None:
    """aten.nll_loss_backward and nll_loss2d_backward, whose `total_weight` is a scalar."""
    rank = len((call.tensor("target") or call.operands[2]).shape)
    batch = tuple((f"b{at}",) for at in range(rank))
    scores: Dims = (*batch[:1], ("c",), *batch[1:])
    by_name: dict[str, Dims] = {
        "grad_output": batch if call.operands[0].shape else (),
        "self": scores,
        "target": batch,
        "weight": (("c",),),
        "total_weight": (),
    }
    return build_rule(
        call, operand_dims(call, by_name), [scores], whole=("c",), linear=(pending(0),)
    )


def elementwise_loss(call: OpCall) -> Rule | None:
    """A loss per element, its sum, or its mean, which must not be split."""
    first, second = (operand.shape for operand in call.operands[:2])
    if first != second:
        return None
    dims = broadcast_dims(first, first)
    operands = [broadcast_dims(operand.shape, first) for operand in call.operands]
    reduction = call.integer("reduction", MEAN)
    names = [name for (name,) in dims]
    return build_rule(
        call,
        operands,
        [dims if reduction == 0 else ()],
        reduce=dict.fromkeys(names, "sum"),
        whole=names if reduction == MEAN else (),
        work=3,
    )


RULES: Table = {
    **same(["aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"], nll_loss),
    **same(
        ["aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default"], nll_loss_backward
    ),
    **same(
        [
            "aten.mse_loss.default",
            "aten.smooth_l1_loss.default",
            "aten.huber_loss.default",
            "aten.binary_cross_entropy.default",
        ],
        elementwise_loss,
    ),
}
