"""Fused steps of optimizers: one kernel updates a parameter and its state, element by element."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.ops.elementwise.cast import CASTS
from autopar.ir.ops.elementwise.pointwise import RULES as POINTWISE
from autopar.ir.ops.elementwise.pointwise import broadcast_dims
from autopar.ir.ops.table import Table, same
from autopar.ir.rules.rule import SAME, OpCall, Rule, build_rule

FUSED_STEPS = tuple(
    f"aten._fused_{name}.{overload}"
    for name in ("adam", "adamw", "sgd", "adagrad")
    for overload in ("default", "tensor_lr")
)
"""Ops on lists: of parameters, their gradients and their state. Results are the new contents."""

ON_LISTS: Mapping[str, str] = {"aten.add.Scalar": "aten._foreach_add_.Scalar"}
"""Other steps of optimizers, and the ops that write to a list of their first arguments."""

ON_ELEMENTS = frozenset((*FUSED_STEPS, *POINTWISE, *CASTS))
"""Ops of an update that compute each element by itself, so that memory bounds them anywhere."""


def fused_step(call: OpCall) -> Rule | None:
    """A step of one parameter. Step count, learning rate and scale of gradients are scalars."""
    shape = call.results[0].shape
    dims = broadcast_dims(shape, shape)
    results = [broadcast_dims(result.shape, shape) for result in call.results]
    scalars = [at for at, result in enumerate(results) if result != dims]
    return build_rule(
        call,
        [broadcast_dims(operand.shape, shape) for operand in call.operands],
        results,
        reduce={(name, at): SAME for dim in dims for name in dim for at in scalars},
        work=15,
    )


RULES: Table = same(FUSED_STEPS, fused_step)
