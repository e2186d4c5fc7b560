"""What is computed again though it is there already, and what changes nothing.

Exporters write a mask once per layer, constants once per node, and multiply by 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from autopar.frontend.recognize.dataflow import Dataflow
from autopar.ir.program import Function, Op, Ref

_NEUTRAL: Mapping[str, float] = {"aten.mul.Tensor": 1.0, "aten.logical_and.default": 1.0}
"""The number that, as one operand, makes an op return the other one."""


def without_repetition(
    function: Function, numbers: Mapping[str, float], kept: frozenset[str]
) -> Function:
    """Returns a function in which nothing is computed twice, and nothing is multiplied by 1.

    Args:
        function: The function.
        numbers: What its constants of one element are.
        kept: Names of values that must stay.
    """
    flow = Dataflow(function, numbers, kept)
    stays = {*function.outputs, *kept}
    instead = _equal_numbers(flow, stays)
    known: dict[object, Op] = {}
    ops: list[Op] = []
    for op in function.ops:
        op = op.with_operands([instead.get(name, name) for name in op.operands])
        if stays.isdisjoint(op.results) and _is_plain(op.kind):
            same, first = _unchanged(op, flow), known.setdefault(_key(op), op)
            if same or first is not op:
                made = (same,) if same else first.results
                instead |= dict(zip(op.results, made, strict=True))
                continue
        ops.append(op)
    return replace(function, ops=tuple(ops)) if instead else function


def _equal_numbers(flow: Dataflow, stays: set[str]) -> dict[str, str]:
    """Returns the constants that are another one, with that."""
    first: dict[object, str] = {}
    found: dict[str, str] = {}
    for name in flow.function.inputs:
        if name in flow.numbers and name not in stays:
            value = flow.value(name)
            key = (value.dtype, value.shape, repr(flow.numbers[name]))
            if first.setdefault(key, name) != name:
                found[name] = first[key]
    return found


def _unchanged(op: Op, flow: Dataflow) -> str:
    """Returns the operand that an op returns as it is; "" if there is none."""
    neutral = _NEUTRAL.get(op.kind)
    if neutral is None:
        return ""
    result = flow.value(op.results[0])
    for one, other in (("self", "other"), ("other", "self")):
        arg = op.arg(one)
        if isinstance(arg, Ref) and flow.number(op.arg(other)) == neutral:
            value = flow.value(arg.name)
            if (value.dtype, value.shape) == (result.dtype, result.shape):
                return arg.name
    return ""


def _is_plain(kind: str) -> bool:
    """Returns whether an op computes the same whenever it is called, and writes nothing."""
    namespace, name, overload = (*kind.split("."), "", "")[:3]
    packet = (
        getattr(getattr(torch.ops, namespace, None), name, None) if namespace == "aten" else None
    )
    op = getattr(packet, overload, None)
    if not isinstance(op, torch._ops.OpOverload):
        return False
    return not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags


def _key(op: Op) -> object:
    # As text, because 1, 1.0 and True are equal keys but different arguments.
    return op.kind, repr(op.args), op.stage, op.lifetime
