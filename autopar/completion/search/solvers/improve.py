"""Improve: better labels for a network, many variables at a time.

Where messages leave a gap, single changes gain nothing. So all variables of a forest change
together: those outside it keep their labels, and what is left has no cycles and is solved exactly.
Forests that begin at different variables take turns, until none of them gains anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from autopar.completion.search.network.network import Array, Network
from autopar.completion.search.solvers.eliminate import Reduced

FORESTS = 8
"""Forests that take turns."""

MAX_TURNS = 64
"""More than any network needed."""

GAIN = 1e-9
"""The part of the cost by which labels must be better to be taken."""


def improve(network: Network, labels: Sequence[int]) -> list[int]:
    """Returns labels that cost no more than these.

    Args:
        network: The network.
        labels: Of its variables.
    """
    best = list(labels)
    seconds = network.cost_of(best)
    count = len(best)
    without_gain = 0
    forests: list[_Forest] = []
    for turn in range(MAX_TURNS):
        if without_gain == FORESTS or not count:
            break
        if turn < FORESTS:
            first, backward = turn * count // FORESTS, turn % 2 == 1
            forests.append(_Forest(network, _forest(network, first, backward=backward)))
        tried = _solve(network, best, forests[turn % FORESTS])
        cost = network.cost_of(tried)
        without_gain += 1
        if cost < seconds * (1 - GAIN):
            best, seconds, without_gain = tried, cost, 0
    return best


def improve_whole(reduced: Reduced, labels: Sequence[int]) -> list[int]:
    """Returns labels of a whole network that cost no more than these.

    Args:
        reduced: What is left of it once variables were eliminated.
        labels: Of all its variables.
    """
    return reduced.labels(improve(reduced.core, [labels[variable] for variable in reduced.kept]))


def solve_forest(network: Network, labels: Sequence[int], free: Sequence[int]) -> list[int]:
    """Returns the best labels if only those of some variables may change.

    Args:
        network: The network.
        labels: Of its variables; of those that may change they don't matter.
        free: The variables that may change, which form no cycle.
    """
    return _solve(network, labels, _Forest(network, free))


class _Forest:
    """Variables without a cycle, with their edges to one another and to others.

    Args:
        network: The network.
        free: The variables.
    """

    def __init__(self, network: Network, free: Sequence[int]) -> None:
        self.variables = free
        number = {variable: index for index, variable in enumerate(free)}
        self.inside: list[dict[int, int]] = []
        self.outside: list[list[tuple[int, int]]] = []
        for variable in free:
            edges = network.edges[variable].items()
            self.inside.append({number[o]: m for o, m in edges if o in number})
            self.outside.append([(m, o) for o, m in edges if o not in number])


def _solve(network: Network, labels: Sequence[int], forest: _Forest) -> list[int]:
    """Returns the best labels if only those of a forest may change.

    Variables leave as in `eliminate`, one with at most one neighbour after the other.
    """
    costs, edges = network.costs, [dict(each) for each in forest.inside]
    vectors = [
        _given(network, labels, variable, outside) if outside else network.vectors[variable]
        for variable, outside in zip(forest.variables, forest.outside, strict=True)
    ]
    leaves = [leaf for leaf, each in enumerate(edges) if len(each) < 2]
    gone: list[tuple[int, Sequence[tuple[int, int]]]] = []
    alive = [True] * len(edges)
    while leaves:
        leaf = heappop(leaves)
        if not alive[leaf]:
            continue
        alive[leaf] = False
        gone.append((leaf, tuple(edges[leaf].items())))
        for other, matrix in edges[leaf].items():
            del edges[other][leaf]
            vectors[other] = costs.add(vectors[other], costs.fold(vectors[leaf], matrix))
            if len(edges[other]) < 2:
                heappush(leaves, other)
    best = list(labels)
    for leaf, around in reversed(gone):
        known = [(matrix, best[forest.variables[other]]) for other, matrix in around]
        best[forest.variables[leaf]] = costs.argmin(vectors[leaf], known)
    return best


def _forest(network: Network, first: int, *, backward: bool) -> list[int]:
    """Returns as many variables as can be taken one after another without a cycle."""
    count = len(network.vectors)
    root = list(range(count))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    taken: set[int] = set()
    for step in range(count):
        variable = (first - step if backward else first + step) % count
        trees = [find(other) for other in network.edges[variable] if other in taken]
        if len(set(trees)) == len(trees):
            taken.add(variable)
            for tree in trees:
                root[tree] = variable
    return sorted(taken)


def _given(
    network: Network, labels: Sequence[int], variable: int, edges: Sequence[tuple[int, int]]
) -> int:
    """Returns a variable's costs with those of edges to variables that keep their labels."""
    costs, vector = network.costs, network.vectors[variable]
    around = sorted((matrix, labels[other]) for matrix, other in edges)

    def make() -> Array:
        total: Array = costs.arrays[vector].copy()
        for matrix, label in around:
            total += costs.arrays[matrix][:, label]
        return total

    return costs.number_of(("given", vector, *around), make)
