"""Conversions between dtypes."""

from __future__ import annotations

from autopar.ir.dtypes import HALVES
from autopar.ir.expr.expression import exact_quotient
from autopar.ir.ops.elementwise.pointwise import broadcast_dims, pointwise
from autopar.ir.ops.table import FIRST, Table, dense, pending, row, same
from autopar.ir.rules.rule import ALL_MONOIDS, Dims, OpCall, Rule, build_rule

SUM, EXTREMA = pending(0), pending(0, monoids=("max", "min"))


def to_copy(call: OpCall) -> Rule | None:
    """aten._to_copy: rounding is monotone; between equal dtypes nothing happens at all.

    A sum is finished before it is rounded to a half: what was computed in float32 for the sake of
    precision isn't added up in float16.
    """
    operand, result = call.operands[0].dtype, call.results[0].dtype
    if operand == result:
        return pointwise(pending(0, monoids=ALL_MONOIDS), work=0)(call)
    return pointwise(EXTREMA)(call) if result in HALVES else pointwise(SUM, EXTREMA)(call)


def reinterpret(call: OpCall) -> Rule | None:
    """aten.view.dtype: an element becomes several, or several one, along the last dimension."""
    operand, result = call.operands[0].shape, call.results[0].shape
    dims = broadcast_dims(operand, operand)
    if operand == result:
        return build_rule(call, [dims], [dims], work=0)
    if 0 in operand:
        return None
    parts: Dims = (*dims[:-1], (*dims[-1], "r"))
    tensors, each = (dims, parts), exact_quotient(result[-1], operand[-1])
    if each is None:
        tensors, each = (parts, dims), exact_quotient(operand[-1], result[-1])
    if each is None:
        return None
    return build_rule(call, tensors[:1], tensors[1:], sizes={"r": each}, whole=("r",), work=0)


CASTS = ("aten._to_copy.default", "aten.to.dtype", "prims.convert_element_type.default")
"""Conversions of elements to another dtype."""

RULES: Table = {
    **same(CASTS, to_copy),
    **same(["aten.view.dtype", "aten.view_copy.dtype"], dense(reinterpret)),
    **same(
        ["aten.view_as_real.default", "aten.view_as_real_copy.default"],
        row("*i -> *i r", whole=("r",), linear=FIRST, work=0),
    ),
    **same(
        ["aten.view_as_complex.default", "aten.view_as_complex_copy.default"],
        dense(row("*i r -> *i", whole=("r",), linear=FIRST, work=0)),
    ),
}
