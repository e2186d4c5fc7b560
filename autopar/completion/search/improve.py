"""Improve: better labels for a network, many variables at a time.

Where messages leave a gap, single changes gain nothing. So all variables of a forest change
together: those outside it keep their labels, and what is left has no cycles and is solved exactly.
Forests that begin at different variables take turns, until none of them gains anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.completion.search.eliminate import Reduced, eliminate
from autopar.completion.search.network import Array, Network

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
    seconds = network.seconds(best)
    count = len(best)
    without_gain = 0
    for turn in range(MAX_TURNS):
        if without_gain == FORESTS or not count:
            break
        first = (turn % FORESTS) * count // FORESTS
        tried = solve_forest(network, best, _forest(network, first, backward=turn % 2 == 1))
        found = network.seconds(tried)
        without_gain += 1
        if found < seconds * (1 - GAIN):
            best, seconds, without_gain = tried, found, 0
    return best


def improve_whole(reduced: Reduced, labels: Sequence[int]) -> list[int]:
    """Returns labels of a whole network that cost no more than these.

    Args:
        reduced: What is left of it once variables were eliminated.
        labels: Of all its variables.
    """
    return reduced.labels(improve(reduced.core, [labels[at] for at in reduced.kept]))


def solve_forest(network: Network, labels: Sequence[int], free: Sequence[int]) -> list[int]:
    """Returns the best labels if only those of some variables may change.

    Args:
        network: The network.
        labels: Of its variables; of those that may change they don't matter.
        free: The variables that may change, which form no cycle.
    """
    part = Network(network.costs)
    number = {variable: at for at, variable in enumerate(free)}
    for variable in free:
        part.variable(_given(network, labels, variable, number))
    for variable, at in number.items():
        for other, matrix in network.edges[variable].items():
            if variable < other and other in number:
                part.connect(at, number[other], matrix)
    solved = eliminate(part).labels([])
    found = list(labels)
    for variable, at in number.items():
        found[variable] = solved[at]
    return found


def _forest(network: Network, first: int, *, backward: bool) -> list[int]:
    """Returns as many variables as can be taken one after another without a cycle."""
    count = len(network.vectors)
    root = list(range(count))

    def find(at: int) -> int:
        while root[at] != at:
            root[at] = root[root[at]]
            at = root[at]
        return at

    taken: set[int] = set()
    for step in range(count):
        variable = (first - step if backward else first + step) % count
        trees = [find(other) for other in network.edges[variable] if other in taken]
        if len(set(trees)) == len(trees):
            taken.add(variable)
            for tree in trees:
                root[tree] = variable
    return sorted(taken)


def _given(network: Network, labels: Sequence[int], variable: int, free: dict[int, int]) -> int:
    """Returns a variable's costs with those of its edges to variables that keep their labels."""
    costs, vector = network.costs, network.vectors[variable]
    around = sorted((m, labels[o]) for o, m in network.edges[variable].items() if o not in free)

    def make() -> Array:
        total: Array = costs.arrays[vector].copy()
        for matrix, label in around:
            total += costs.arrays[matrix][:, label]
        return total

    return costs.of(("given", vector, *around), make) if around else vector
