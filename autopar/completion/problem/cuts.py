"""Cuts: how the program takes a tensor's dimensions apart, or has put them together.

384 columns that later become 12 heads of 32 should be split between heads, not through one. So the
boundaries that views introduce are carried through the factors, backward, forward, and backward
again: heads that meet others in an op, as those of a query meet the groups of keys, learn of them
only from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autopar.completion.problem.graph import Graph, Node
from autopar.ir.expr.expression import IntExpr, exact_quotient
from autopar.ir.expr.strides import is_between, order
from autopar.ir.rules.rule import Dims

Strides = frozenset[IntExpr]
"""Boundaries within a dimension, each as the number of elements minor to it."""

_NONE: Strides = frozenset()


class Cuts:
    """The boundaries within the dimensions of every value of a graph."""

    def __init__(self, graph: Graph) -> None:
        ops = graph.nodes
        self._strides: dict[tuple[int, int], Strides] = {}
        for node in (*reversed(ops), *ops, *reversed(ops)):
            self._visit(node)

    def sizes(self, value: int, dim: int, size: IntExpr) -> tuple[IntExpr, ...]:
        """Returns the sub-dimensions, major to minor, that a dimension consists of."""
        strides = sorted(self._strides.get((value, dim), _NONE), key=order)
        sizes: list[IntExpr] = []
        inner: IntExpr = 1
        for stride in [*strides, size]:
            between = exact_quotient(stride, inner)
            if between is None:
                return (size,)
            sizes.append(between)
            inner = stride
        return tuple(reversed(sizes))

    def within(self, node: Node) -> dict[str, Strides]:
        """Returns the boundaries within an op's factors, as far as its tensors have them."""
        return self._within_factors(node, node.call.tensors, node.call.rule.sizes)

    def _visit(self, node: Node) -> None:
        rule = node.call.rule
        tensors = node.call.tensors
        within = self._within_factors(node, tensors, rule.sizes)
        for dims, value in zip(tensors, node.tensors, strict=True):
            for dim, factors in enumerate(dims):
                if len(factors) > 1 or (factors and factors[0] in within):
                    self._add(value, dim, factors, within, rule.sizes)

    def _add(
        self,
        value: int,
        dim: int,
        factors: tuple[str, ...],
        within: Mapping[str, Strides],
        sizes: Mapping[str, IntExpr],
    ) -> None:
        """Adds the boundaries between a dimension's factors and those within them."""
        strides = set(self._strides.get((value, dim), _NONE))
        inner: IntExpr = 1
        for factor in reversed(factors):
            strides.update(inner * stride for stride in within.get(factor, _NONE))
            inner = inner * sizes[factor]
            strides.add(inner)
        self._strides[value, dim] = frozenset(strides - {1, inner})

    def _within_factors(
        self, node: Node, tensors: tuple[Dims, ...], sizes: Mapping[str, IntExpr]
    ) -> dict[str, Strides]:
        """Returns the boundaries within the op's factors, as far as its tensors have them."""
        within: dict[str, Strides] = {}
        for dims, value in zip(tensors, node.tensors, strict=True):
            for dim, factors in enumerate(dims):
                strides = self._strides.get((value, dim))
                if not strides:
                    continue
                inner: IntExpr = 1
                for factor in reversed(factors):
                    outer = inner * sizes[factor]
                    inside = frozenset(_between(strides, inner, outer))
                    if inside:
                        within[factor] = within.get(factor, _NONE) | inside
                    inner = outer
        return within


def _between(strides: Strides, inner: IntExpr, outer: IntExpr) -> Iterator[IntExpr]:
    """Yields the strides between two others, in units of the inner one."""
    for stride in strides:
        units = exact_quotient(stride, inner) if is_between(inner, stride, outer) else None
        if units is not None:
            yield units
