"""Eliminate: variables with one or two neighbours are solved exactly and leave the network.

Whatever its neighbours' labels are, the best label of such a variable is known, so its cost becomes
one of its neighbours: a vector for one of them, an edge between two. Chains, trees and
series-parallel networks vanish altogether (Dechter, *Bucket elimination*, 1999).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from autopar.completion.search.network import Costs, Network

MOST_WORK = 1 << 24
"""The most sums to join two edges of a variable; beyond, it stays."""


@dataclass(frozen=True, slots=True)
class _Gone:
    """A variable that left: its costs, and its neighbours with the edges to them."""

    variable: int
    vector: int
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Reduced:
    """What is left of a network, and how to come back.

    Attributes:
        core: The network of the variables that stay.
        kept: Per variable of the core, its number before.
        seconds: What the variables cost that have no neighbours left.
    """

    core: Network
    kept: tuple[int, ...]
    seconds: float
    _gone: tuple[_Gone, ...]
    _count: int

    def labels(self, core: Sequence[int]) -> list[int]:
        """Returns the label of every variable before, given those of the core."""
        labels = [0] * self._count
        for variable, label in zip(self.kept, core, strict=True):
            labels[variable] = label
        costs = self.core.costs
        for gone in reversed(self._gone):
            edges = [(matrix, labels[other]) for other, matrix in gone.edges]
            labels[gone.variable] = costs.argmin(gone.vector, edges)
        return labels


def eliminate(network: Network) -> Reduced:
    """Returns what is left of a network once no variable with one or two neighbours is.

    The network itself is used up.
    """
    costs, edges = network.costs, network.edges
    gone: list[_Gone] = []
    alive = [True] * len(edges)
    seconds = 0.0
    queue = deque(at for at in range(len(edges)) if len(edges[at]) <= 2)
    while queue:
        variable = queue.popleft()
        if not alive[variable] or not _may_go(network, variable):
            continue
        alive[variable] = False
        around = tuple(sorted(edges[variable].items()))
        vector = network.vectors[variable]
        gone.append(_Gone(variable, vector, around))
        for other, _ in around:
            del edges[other][variable]
        if not around:
            seconds += float(costs.arrays[vector].min())
        elif len(around) == 1:
            network.charge(around[0][0], costs.fold(vector, around[0][1]))
        else:
            (one, first), (other, second) = around
            network.connect(one, other, costs.join(vector, first, second))
        queue.extend(other for other, _ in around if len(edges[other]) <= 2)
    kept = tuple(at for at, stays in enumerate(alive) if stays)
    return Reduced(_renumbered(network, kept, costs), kept, seconds, tuple(gone), len(edges))


def _may_go(network: Network, variable: int) -> bool:
    around = network.edges[variable]
    if len(around) < 2:
        return True
    if len(around) > 2:
        return False
    work = network.size(variable)
    for other in around:
        work *= network.size(other)
    return work <= MOST_WORK


def _renumbered(network: Network, kept: Sequence[int], costs: Costs) -> Network:
    number = {variable: at for at, variable in enumerate(kept)}
    core = Network(costs)
    for variable in kept:
        core.variable(network.vectors[variable])
    for variable in kept:
        at = number[variable]
        core.edges[at] = {number[o]: m for o, m in sorted(network.edges[variable].items())}
    return core
