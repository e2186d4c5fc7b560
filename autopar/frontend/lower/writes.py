"""Writes that would be lost: a program has values, and nothing happens to them.

An op that writes to its operand may have no reader itself, so that what a graph returns doesn't
seem to need it, and still change what others read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import fx


def lost_writes(graph: fx.Graph, live: Collection[fx.Node]) -> Iterator[fx.Node]:
    """Yields ops that nobody reads and that write to memory which is read later.

    What writes to an input at the end, for its caller, is none of them.

    Args:
        graph: The graph.
        live: What its outputs are computed from.
    """
    at = {node: position for position, node in enumerate(graph.nodes)}
    needed = {*live, graph.output_node()}
    for node in graph.nodes:
        if node in needed or not _is_mutable(node):
            continue
        changed = {memory_of(operand) for operand in _written(node)}
        reads = (
            user
            for other in at
            if memory_of(other) in changed
            for user in other.users
            if user in needed and at[user] > at[node]
        )
        if any(True for _ in reads):
            yield node


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the operands that an op writes to."""
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        given = node.args[position] if position < len(node.args) else None
        given = node.kwargs.get(argument.name, given)
        if argument.is_write:
            yield from (item for item in _listed(given) if isinstance(item, fx.Node))


def _listed(value: object) -> Collection[object]:
    return value if isinstance(value, (list, tuple)) else [value]


def memory_of(node: fx.Node) -> fx.Node:
    """Returns the node whose memory a node's result lies in: views are seen through."""
    while isinstance(node.target, torch._ops.OpOverload) and node.args:
        shared = any(result.alias_info is not None for result in node.target._schema.returns)
        source = node.args[0]
        if not shared or not isinstance(source, fx.Node):
            break
        node = source
    return node
