"""Adds ops and values to a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autopar.ir import emitted
from autopar.ir.emitted import Emitted
from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import Op, Value


class Writer:
    """Adds ops and values to a function.

    Attributes:
        values: All values, the new ones too.
        ops: The new ops, in order.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = dict(values)
        self.ops: list[Op] = []

    def fresh(self, name: str) -> str:
        """Returns a name that no value has."""
        return emitted.unused(name, self.values)

    def write(
        self,
        made: Emitted,
        like: Op,
        operand: str,
        name: str,
        shape: Sequence[IntExpr],
        dtype: str = "",
    ) -> str:
        """Adds an op of one operand in the place of another op; returns the name of its result."""
        old = self.values[operand]
        role = old.role if old.role == "gradient" else "activation"
        new = replace(old, name=name, shape=tuple(shape), role=role, dist=None, origin=None)
        self.values.setdefault(name, replace(new, dtype=dtype or old.dtype))
        op = made.with_operand(operand).instead_of(like, name)
        self.ops.append(replace(op, dist=None, origin=None, plan=()))
        return name
