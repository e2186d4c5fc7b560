"""Alternative bodies, completed: how their ops are computed, and what that takes."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.completion.problem.body import body_function
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Call, CallTable, Priced
from autopar.completion.problem.price import Price
from autopar.completion.problem.space import Form, Need, Space
from autopar.completion.propagate.solve import Solution, solve
from autopar.ir.program import Function, OpDist


def calls_on(space: Space) -> CallTable:
    """Returns a table of calls over a space, in which bodies are priced as they are completed."""
    return CallTable(space, priced_body)


def solve_body(calls: CallTable, function: Function) -> Solution:
    """Returns the choices of a body's ops."""
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
    by_name = {value.name: number for number, value in enumerate(graph.values)}
    for position, name in enumerate(function.outputs):
        value = by_name[name]
        producer = graph.producer[value]
        if producer is not None:
            node, result = producer
            made = solution.choices[node.index].leaves(result)
            if made is not solution.forms[value]:
                yield position, value, made


def priced_body(calls: CallTable, call: Call, dist: OpDist) -> Priced:
    """Returns what computing an op by a body takes, reshards inside included.

    Results stay as the body's ops leave them.
    """
    op, values = call.example
    function = body_function(call.rule, op, dist, values)
    solution = solve_body(calls, function)
    graph, choices = solution.graph, solution.choices
    price, seconds, left = Price(graph), solution.seconds, {}
    for position, value, made in left_otherwise(function, solution):
        pinned = price.value(choices, value, solution.forms[value])
        seconds += price.value(choices, value, made) - pinned
        left[position] = made
    around = {graph.position[name] for name in (*op.operands, *op.results)}
    inside = [value for value in range(len(graph.values)) if value not in around]
    own = sum(choice.own_seconds for choice in choices)
    own += price.moves(choices, solution.forms, inside)
    reads = {position: _reads(solution, name) for position, name in enumerate(op.operands)}
    again = {position: _reads(solution, name) for position, name in enumerate(op.results)}
    return Priced(seconds, own, left, reads, again)


def _reads(solution: Solution, name: str) -> tuple[Need, ...]:
    """Returns how the ops of a body read a value."""
    graph = solution.graph
    uses = graph.uses[graph.position[name]]
    return tuple(
        dict.fromkeys(
            need for node, position in uses for need in solution.choices[node.index].reads(position)
        )
    )
