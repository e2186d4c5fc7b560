"""The op definitions: one factor rule per op, in tables by family.

`rule_of` is the only way to ask for a rule. Adding an op is adding a row to a table.
"""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.ops import (
    attention,
    cast,
    convolution,
    creation,
    indexing,
    layout,
    loss,
    matmul,
    normalization,
    pointwise,
    quantized,
    reduction,
    sampling,
    sort,
    view,
)
from autopar.ir.ops.table import RuleFunction, Table
from autopar.ir.program import Op, Value
from autopar.ir.rule import OpCall, Rule, RuleError, TensorType

TABLES: tuple[Table, ...] = (
    pointwise.RULES,
    cast.RULES,
    matmul.RULES,
    reduction.RULES,
    normalization.RULES,
    view.RULES,
    layout.RULES,
    indexing.RULES,
    creation.RULES,
    convolution.RULES,
    convolution.POOLING,
    convolution.RESIZING,
    attention.RULES,
    sampling.RULES,
    sort.RULES,
    loss.RULES,
    quantized.RULES,
)
RULES: Mapping[str, RuleFunction] = {kind: rule for table in TABLES for kind, rule in table.items()}


def call_of(op: Op, values: Mapping[str, Value]) -> OpCall:
    """Returns an op of a serial program as what its rule is a function of."""
    return OpCall(
        op.kind,
        dict(op.args),
        tuple(_type(values[name]) for name in op.operands),
        tuple(_type(values[name]) for name in op.results),
    )


def rule_of(op: Op, values: Mapping[str, Value]) -> Rule | None:
    """Returns the rule of an op of a serial program, or None if it has none for this call.

    A rule that doesn't fit the call's shapes counts as none: such an op is computed whole.
    """
    function = RULES.get(op.kind)
    if function is None:
        return None
    try:
        return function(call_of(op, values))
    except RuleError:
        return None


def _type(value: Value) -> TensorType:
    return TensorType(value.global_shape, value.dtype)
