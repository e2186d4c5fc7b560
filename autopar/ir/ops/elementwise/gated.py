"""Gated units: one half of a dimension opens or closes the other.

The dimension is `(g c)`, two halves of `c` channels, which may be split.
"""

from __future__ import annotations

from autopar.ir.expr.expression import shape_str
from autopar.ir.expr.facts import divides
from autopar.ir.ops.table import Table, axis, factors, pending
from autopar.ir.rules.rule import Dims, OpCall, Rule, RuleError, build_rule


def _dims(call: OpCall, operand: int) -> tuple[Dims, Dims]:
    """Returns the factors of a tensor with both halves and of one with a half.

    Raises:
        RuleError: If the dimension has no halves.
    """
    shape = call.operands[operand].shape
    at, dims = axis(call, len(shape), default=-1), factors("i", len(shape))
    if not shape or not divides(2, shape[at]):
        raise RuleError(f"{call.kind}: dimension {at} of {shape_str(shape)} has no halves")
    return (*dims[:at], ("g", "c"), *dims[at + 1 :]), (*dims[:at], ("c",), *dims[at + 1 :])


def glu(call: OpCall) -> Rule | None:
    """aten.glu: the first half, times the sigmoid of the second."""
    both, half = _dims(call, 0)
    return build_rule(call, [both], [half], sizes={"g": 2}, whole=("g",), work=5)


def glu_backward(call: OpCall) -> Rule | None:
    """aten.glu_backward: the gradient of both halves."""
    both, half = _dims(call, 1)
    linear = (pending(0),)
    return build_rule(
        call, [half, both], [both], sizes={"g": 2}, whole=("g",), linear=linear, work=5
    )


RULES: Table = {"aten.glu.default": glu, "aten.glu_backward.default": glu_backward}
