"""Reduce before scatter: sums of pieces are taken before the pieces are scattered.

Where the readers of a sum want it split, its ops are split so as well, and every operand is brought
there by a reduce_scatter of its own. If all operands are pieces over that axis, one behind the sum
is enough: so the ops of the sum are taken off the axis, for `deferred_reductions` to let the pieces
through.
"""

from __future__ import annotations

from dataclasses import dataclass

from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.op_strategies import Choice


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What is known of a value that is, or could be, pending over an axis.

    Attributes:
        births: How many ops left the pieces that are added up in it.
        split_ops: The ops, between those and the value, to take off the axis.
    """

    births: int
    split_ops: frozenset[int]


def reduce_before_scatter(graph: Graph, choices: list[Choice]) -> list[int]:
    """Takes the ops of sums off axes over which they are pending; changes `choices` in place.

    Returns:
        The ops whose choice changed.
    """
    changed: set[int] = set()
    for axis in graph.space.axes:
        pieces: dict[int, _Pieces] = {}
        for node in graph.nodes:
            _visit(graph, choices, axis, node, pieces)
        for made in pieces.values():
            if made.births > 1:
                changed.update(_take_off(graph, choices, axis, made.split_ops))
    return sorted(changed)


def _visit(
    graph: Graph, choices: list[Choice], axis: str, node: Node, pieces: dict[int, _Pieces]
) -> None:
    """Notes what an op makes of pieces; what it takes in are no longer ends of a sum."""
    choice = choices[node.index]
    for position, value in enumerate(node.results):
        if (axis, "sum") in choice.produced[position].layout.partial:
            pieces[value] = _Pieces(1, frozenset())
    row = node.call.longest_row(choice.dist.body)
    operands = [node.operands[position] for position in row]
    if len(node.results) != 1 or not operands or any(v not in pieces for v in operands):
        return
    if any(len(graph.uses[v]) > 1 or _is_fixed(graph, v) for v in operands):
        return
    taken = [pieces.pop(value) for value in operands]
    split_ops = frozenset().union(*(one.split_ops for one in taken))
    if axis in choice.splits.places:
        split_ops |= {node.index}
    pieces[node.results[0]] = _Pieces(sum(one.births for one in taken), split_ops)


def _is_fixed(graph: Graph, value: int) -> bool:
    return value in graph.outputs or graph.pins[value] is not None


def _take_off(graph: Graph, choices: list[Choice], axis: str, ops: frozenset[int]) -> list[int]:
    """Takes ops off an axis, all or none."""
    without = {}
    for index in sorted(ops):
        node, splits = graph.nodes[index], choices[index].splits
        choice = node.call.choice(graph.space.table.without(splits, axis))
        if (
            choice is None
            or index in graph.decided
            or axis in graph.settled.get(index, graph.space.table.none).places
        ):
            return []
        without[index] = choice
    for index, choice in without.items():
        choices[index] = choice
    return list(without)
