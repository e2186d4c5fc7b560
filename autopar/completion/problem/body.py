"""Alternative bodies: the ops that compute one op, between the layouts around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autopar.ir.layout import Origin
from autopar.ir.program import Function, Op, OpDist, Value
from autopar.ir.rules.distribution import consumed, produced
from autopar.ir.rules.rule import Rule


def expand_body(
    rule: Rule, op: Op, dist: OpDist, values: Mapping[str, Value], fresh: Callable[[str], str]
) -> tuple[Sequence[Op], Sequence[Value]]:
    """Returns the ops of the body that `dist` names, and the values between them.

    Raises:
        ValueError: If the rule has no such body.
    """
    body = rule.body(dist.body)
    if body is None:
        raise ValueError(f"{op.kind} has no body {dist.body!r}")
    return body.expand(op, values, fresh)


def body_function(rule: Rule, op: Op, dist: OpDist, values: Mapping[str, Value]) -> Function:
    """Returns the ops of the body that `dist` names, with the values around them pinned.

    Operands are pinned to the layouts that the choice consumes, results to what it produces.

    Args:
        rule: The op's own rule.
        op: The op.
        dist: The choice.
        values: The values around the op.
    """
    ops, new = expand_body(rule, op, dist, values, _numbered())
    origin = Origin("chosen", f"body {dist.body!r} of {op.kind}")
    inner: dict[str, Value] = {}
    for position, name in enumerate(op.operands):
        inner.setdefault(
            name, replace(values[name], dist=consumed(rule, dist, position), origin=origin)
        )
    for position, name in enumerate(op.results):
        inner[name] = replace(values[name], dist=produced(rule, dist, position), origin=origin)
    inner.update((value.name, value) for value in new)
    # Ops of a body may have been made of the op itself, whose choice isn't theirs.
    free = tuple(replace(each, dist=None) for each in ops)
    return Function("body", tuple(dict.fromkeys(op.operands)), op.results, inner, free)


def body_ops(
    rule: Rule, op: Op, dist: OpDist, values: Mapping[str, Value]
) -> tuple[Sequence[Op], Mapping[str, Value]]:
    """Returns the ops of the body that `dist` names, and the values around and between them."""
    ops, new = expand_body(rule, op, dist, values, _numbered())
    return ops, {**values, **{value.name: value for value in new}}


def _numbered() -> Callable[[str], str]:
    """Returns what makes names out of hints, each another one."""
    count = 0

    def fresh(hint: str) -> str:
        nonlocal count
        count += 1
        return f"{hint}.body{count}"

    return fresh
