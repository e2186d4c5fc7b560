"""Alternative bodies: the ops that compute one op, completed between the layouts around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autopar.completion.problem.space import Form, Need
from autopar.ir.layout import Origin
from autopar.ir.program import Function, Op, OpDist, Value
from autopar.ir.rules.distribution import consumed, produced
from autopar.ir.rules.rule import Rule

if TYPE_CHECKING:
    from autopar.completion.problem.op_strategies import Call, CallTable, Priced
    from autopar.completion.propagate.solve import Solution


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
    for at, name in enumerate(op.operands):
        inner.setdefault(name, replace(values[name], dist=consumed(rule, dist, at), origin=origin))
    for at, name in enumerate(op.results):
        inner[name] = replace(values[name], dist=produced(rule, dist, at), origin=origin)
    inner.update((value.name, value) for value in new)
    # Ops of a body may have been made of the op itself, whose choice isn't theirs.
    free = tuple(replace(each, dist=None) for each in ops)
    return Function("body", tuple(dict.fromkeys(op.operands)), op.results, inner, free)


def body_ops(call: Call, body: str) -> tuple[Sequence[Op], Mapping[str, Value]]:
    """Returns the ops of a body of a call, and the values around and between them."""
    op, values = call.example
    dist = OpDist(call.space.mesh, body=body)
    ops, new = expand_body(call.rule, op, dist, values, _numbered())
    return ops, {**values, **{value.name: value for value in new}}


def _numbered() -> Callable[[str], str]:
    """Returns what makes names out of hints, each another one."""
    count = 0

    def fresh(hint: str) -> str:
        nonlocal count
        count += 1
        return f"{hint}.body{count}"

    return fresh


def solve_body(calls: CallTable, function: Function) -> Solution:
    """Returns the choices of a body's ops."""
    from autopar.completion.problem.graph import Graph
    from autopar.completion.propagate.solve import solve

    graph = Graph(calls.space, calls, function.ops, function.values, function.outputs)
    return solve(graph)


def left_otherwise(function: Function, solution: Solution) -> Iterator[tuple[int, int, Form]]:
    """Yields the results that a body's ops leave otherwise than they are pinned.

    Args:
        function: The body.
        solution: The choices of its ops.

    Yields:
        The position of a result, its value in the graph of the solution, and its form.
    """
    graph = solution.graph
    by_name = {value.name: at for at, value in enumerate(graph.values)}
    for at, name in enumerate(function.outputs):
        value = by_name[name]
        producer = graph.producer[value]
        if producer is not None:
            node, position = producer
            made = solution.choices[node.index].leaves(position)
            if made is not solution.forms[value]:
                yield at, value, made


def priced_body(calls: CallTable, call: Call, dist: OpDist) -> Priced:
    """Returns what computing an op by a body takes, reshards inside included.

    Results stay as the body's ops leave them.
    """
    from autopar.completion.problem.op_strategies import Priced
    from autopar.completion.problem.price import Price

    op, values = call.example
    function = body_function(call.rule, op, dist, values)
    solution = solve_body(calls, function)
    graph, choices = solution.graph, solution.choices
    price, seconds, left = Price(graph), solution.seconds, {}
    for at, value, made in left_otherwise(function, solution):
        pinned = price.value(choices, value, solution.forms[value])
        seconds += price.value(choices, value, made) - pinned
        left[at] = made
    around = {graph.position[name] for name in (*op.operands, *op.results)}
    inside = [value for value in range(len(graph.values)) if value not in around]
    own = sum(choice.own_seconds for choice in choices)
    own += price.moves(choices, solution.forms, inside)
    reads = {at: _reads(solution, name) for at, name in enumerate(op.operands)}
    again = {at: _reads(solution, name) for at, name in enumerate(op.results)}
    return Priced(seconds, own, left, reads, again)


def _reads(solution: Solution, name: str) -> tuple[Need, ...]:
    """Returns how the ops of a body read a value."""
    graph = solution.graph
    uses = graph.uses[graph.position[name]]
    return tuple(
        dict.fromkeys(need for node, at in uses for need in solution.choices[node.index].reads(at))
    )
