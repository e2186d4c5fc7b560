"""Writes a solution into a function: a layout and its origin for every value and op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopar.completion.problem.graph import Node
from autopar.completion.propagate.solve import Solution
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Op, OpDist, Value
from autopar.ir.rules.foreign import bare_kind

LEFT_PENDING = "a reduction is left pending"
"""In the origin of an op that no neighbour told how it is split."""

PLACED = "split between the parts that the program takes the dimension apart into"
"""In the origin of a parameter whose pin was placed within its dimension."""


GATHERED = "an output that its readers need so too"
"""In the origin of a value that isn't stored as its op leaves it."""


def write_solution(function: Function, solution: Solution) -> Function:
    """Returns the function with every value and op complete."""
    graph = solution.graph
    values: dict[str, Value] = {}
    for number, value in enumerate(graph.values):
        if number in graph.fixed:
            values[value.name] = _pinned(
                value, solution.forms[number].layout, number in graph.placed
            )
            continue
        origin = graph.origins.get(number) or _value_origin(solution, number)
        values[value.name] = replace(value, dist=solution.forms[number].layout, origin=origin)
    # Ops are told apart by their results, since the graph has another order.
    done = {node.op.results: node for node in graph.nodes}
    ops = tuple(_complete_op(op, done[op.results], solution) for op in function.ops)
    return replace(function, values={name: values[name] for name in function.values}, ops=ops)


def _pinned(value: Value, layout: Layout, placed: bool) -> Value:
    """Returns a value that the user pinned, with where its pin was placed."""
    origin = value.origin or Origin("annotated")
    if placed:
        detail = ", ".join(filter(None, (origin.detail, PLACED)))
        return replace(value, dist=layout, origin=replace(origin, detail=detail))
    return replace(value, origin=origin)


def write_replicated(function: Function, mesh: ProcessMesh) -> Function:
    """Returns a function whose every op is computed by all processes alike."""
    origin = Origin("fallback", f"function {function.name} is computed by every process")
    values: Mapping[str, Value] = {
        name: replace(value, dist=Layout.replicated(mesh, value.global_shape), origin=origin)
        for name, value in function.values.items()
    }
    ops = tuple(replace(op, dist=OpDist(mesh), origin=origin) for op in function.ops)
    return replace(function, values=values, ops=ops)


def _complete_op(op: Op, node: Node, solution: Solution) -> Op:
    dist = solution.choices[node.index].dist
    return replace(op, dist=dist, origin=_op_origin(solution, node))


def _op_origin(solution: Solution, node: Node) -> Origin:
    if not node.call.has_rule:
        return Origin("fallback", f"{bare_kind(node.op.kind)} has no rule")
    if node.index in solution.graph.decided:
        return node.op.origin or Origin("annotated")
    choice = solution.choices[node.index]
    if node.index in solution.chosen:
        return Origin("chosen", "by predicted cost")
    if not choice.splits.items and not choice.dist.pending:
        return Origin("default", "nothing around it is split")
    values = solution.graph.values
    by_axis = solution.op_source[node.index]
    names = dict.fromkeys(
        f"%{values[v].name}" if v in node.operands else f"the readers of %{values[v].name}"
        for _, v in sorted(by_axis.items())
    )
    if names:
        return Origin("implied", f"by {', '.join(names)}")
    return Origin("chosen", LEFT_PENDING)


def _value_origin(solution: Solution, value: int) -> Origin:
    graph = solution.graph
    producer = graph.producer[value]
    if producer is not None:
        node, position = producer
        made = solution.choices[node.index].produced[position]
        if solution.forms[value] not in (made, graph.space.complete(made)):
            return Origin("chosen", GATHERED)
        kind = _op_origin(solution, node).kind
        follows = kind in ("annotated", "chosen", "preset")
        return Origin("implied" if follows else kind, _by(node))
    axes = solution.forms[value].splits.places
    sources = sorted({solution.value_source[value].get(axis, -1) for axis in axes} - {-1})
    if sources:
        return Origin("implied", ", ".join(_by(graph.nodes[index]) for index in sources))
    if axes:
        readers = [node for node, _ in graph.uses[value]]
        return Origin("implied", _by(readers[0]) if readers else "as its new content lies")
    return Origin("default", "no reader wants it split")


def _by(node: Node) -> str:
    loc = node.op.loc
    return f"by {node.op.kind} at {loc}" if loc.file or loc.name else f"by {node.op.kind}"
