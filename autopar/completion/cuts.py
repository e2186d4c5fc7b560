"""Cuts: how the rest of the program takes a tensor's dimensions apart.

384 columns that later become 12 heads of 32 should be split between heads, not through one. So the
boundaries that views introduce are carried back, through the factors, to where the columns arise.
"""

from __future__ import annotations

from autopar.completion.graph import Graph, Node

Strides = frozenset[int]
"""Boundaries within a dimension, each as the number of elements minor to it."""

_NONE: Strides = frozenset()


class Cuts:
    """The boundaries within the dimensions of every value of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._strides: dict[tuple[int, int], Strides] = {}
        for node in reversed(graph.nodes):
            if node.call.rule is not None:
                self._visit(node)

    def sizes(self, value: int, dim: int, size: int) -> tuple[int, ...]:
        """Returns the sub-dimensions, major to minor, that a dimension is later cut into."""
        strides = sorted(self._strides.get((value, dim), _NONE))
        found: list[int] = []
        inner = 1
        for stride in [*strides, size]:
            if stride % inner:
                return (size,)
            found.append(stride // inner)
            inner = stride
        return tuple(reversed(found))

    def _visit(self, node: Node) -> None:
        rule = node.call.rule
        assert rule is not None
        within = self._within_factors(node)
        for dims, value in zip(rule.operands, node.operands, strict=True):
            for at, factors in enumerate(dims):
                if len(factors) < 2 and not any(factor in within for factor in factors):
                    continue
                strides = set(self._strides.get((value, at), _NONE))
                inner = 1
                for factor in reversed(factors):
                    strides.update(inner * stride for stride in within.get(factor, _NONE))
                    inner *= rule.sizes[factor]
                    strides.add(inner)
                strides.discard(inner)
                strides.discard(1)
                self._strides[value, at] = frozenset(strides)

    def _within_factors(self, node: Node) -> dict[str, Strides]:
        """Returns the boundaries within the op's factors that its results' readers introduce."""
        rule = node.call.rule
        assert rule is not None
        within: dict[str, Strides] = {}
        for dims, value in zip(rule.results, node.results, strict=True):
            for at, factors in enumerate(dims):
                strides = self._strides.get((value, at))
                if not strides:
                    continue
                inner = 1
                for factor in reversed(factors):
                    outer = inner * rule.sizes[factor]
                    inside = {s // inner for s in strides if inner < s < outer and s % inner == 0}
                    if inside:
                        within[factor] = within.get(factor, _NONE) | inside
                    inner = outer
        return within
