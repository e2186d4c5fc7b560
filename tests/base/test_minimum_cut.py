"""The minimum cut against all cuts."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from autopar.base.minimum_cut import FlowGraph

NODES = 5
EDGES = st.lists(
    st.tuples(st.integers(0, NODES + 1), st.integers(0, NODES + 1), st.integers(0, 9)), max_size=16
)


@given(EDGES, st.sampled_from([0, 1e-9]))
def test_the_cuts_are_the_smallest_and_nearest(
    edges: list[tuple[int, int, int]], tolerance: float
) -> None:
    graph = FlowGraph(tolerance)
    nodes = [graph.source, graph.sink, *(graph.node() for _ in range(NODES))]
    for tail, head, capacity in edges:
        graph.edge(nodes[tail], nodes[head], capacity)

    def weight(side: frozenset[int]) -> int:
        return sum(c for tail, head, c in edges if nodes[tail] in side and nodes[head] not in side)

    sides = [
        frozenset({graph.source, *(n for n, inside in zip(nodes[2:], bits, strict=True) if inside)})
        for bits in product((False, True), repeat=NODES)
    ]
    least = min(weight(side) for side in sides)
    found = graph.source_side()
    assert weight(found) == least
    smallest = [side for side in sides if weight(side) == least]
    assert found == frozenset.intersection(*smallest)
    assert graph.sink_side() == frozenset(nodes) - frozenset.union(*smallest)
