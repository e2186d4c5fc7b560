"""The op definitions: one factor rule per op, in tables by family.

`rule_of` is the only way to ask for a rule. Adding an op is adding a row to a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autopar.ir.ops.matmul import RULES as MATMUL
from autopar.ir.ops.pointwise import RULES as POINTWISE
from autopar.ir.program import Op, Value
from autopar.ir.rule import OpCall, Rule, TensorType

RuleFunction = Callable[[OpCall], Rule | None]

TABLES: tuple[Mapping[str, RuleFunction], ...] = (MATMUL, POINTWISE)
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
    """Returns the rule of an op of a serial program, or None if it has none for this call."""
    function = RULES.get(op.kind)
    return function(call_of(op, values)) if function else None


def _type(value: Value) -> TensorType:
    return TensorType(value.global_shape, value.dtype)
