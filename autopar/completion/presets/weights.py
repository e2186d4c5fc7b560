"""Weights: which ops read what is made of a parameter, and which of them had better stay whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.space import bytes_of


def readers(graph: Graph, value: int) -> Iterator[int]:
    """Yields the forward ops that read a value, or what is made of a parameter, each once."""
    seen: set[int] = set()
    left = [value]
    while left:
        for node, _ in graph.uses[left.pop()]:
            if node.op.phase == "forward" and node.index not in seen:
                seen.add(node.index)
                yield node.index
                left.extend(node.results if node.steady else ())


def sources(
    graph: Graph, value: int, through: Callable[[int], bool] = lambda _: True
) -> Iterator[int]:
    """Yields a value and those that it is made of, each once.

    Args:
        graph: The program.
        value: The value.
        through: Whether what a value is made of is looked at.
    """
    seen: set[int] = set()
    left = [value]
    while left:
        value = left.pop()
        if value not in seen:
            seen.add(value)
            yield value
            if (producer := graph.producer[value]) is not None and through(value):
                left.extend(producer[0].operands)


def parameters(graph: Graph, value: int) -> Iterator[int]:
    """Yields the parameters that a weight is made of, each once."""
    return (each for each in sources(graph, value) if graph.producer[each] is None)


def minor_weights(graph: Graph) -> frozenset[int]:
    """Returns the ops whose weight may stay whole: another of the same activation is larger.

    Heads of key and value that are fewer than the processes are computed by each process that
    needs them, as long as the query is split; and a table of positions meets the heads of each
    process, as long as what makes the heads is split. Otherwise a preset would split nothing where
    communication costs more than it saves.
    """
    groups: dict[int, list[tuple[int, int]]] = {}
    for node in graph.nodes:
        for size in _weight_bytes(graph, node):
            for value in {_source(graph, v) for v in node.operands if not graph.steady[v]}:
                groups.setdefault(value, []).append((node.index, size))
    return frozenset(
        index
        for value, group in groups.items()
        for index, size in group
        if 2 * size <= max(*(other for _, other in group), *_maker_bytes(graph, value))
    )


def _weight_bytes(graph: Graph, node: Node) -> tuple[int, ...]:
    """Returns the bytes of an op's weight, if it has one."""
    return tuple(bytes_of(graph.values[node.operands[position]]) for position in node.weights[:1])


def _maker_bytes(graph: Graph, value: int) -> tuple[int, ...]:
    """Returns the bytes of the weight that an activation is made with, and 0."""
    producer = graph.producer[value]
    return (0, *(() if producer is None else _weight_bytes(graph, producer[0])))


def _source(graph: Graph, value: int) -> int:
    """Returns the value of which a value is a view."""
    producer = graph.producer[value]
    while producer is not None and not producer[0].call.rule.work:
        moved = [operand for operand in producer[0].operands if not graph.steady[operand]]
        if len(moved) != 1 or not producer[0].call.has_rule:
            break
        value = moved[0]
        producer = graph.producer[value]
    return value
