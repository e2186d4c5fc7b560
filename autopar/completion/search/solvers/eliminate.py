"""Eliminate: variables with one or two neighbours are solved exactly and leave the network.

Whatever its neighbours' labels are, the best label of such a variable is known, so its cost becomes
one of its neighbours: a vector for one of them, an edge between two. Chains, trees and
series-parallel networks vanish altogether (Dechter, *Bucket elimination*, 1999).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from autopar.completion.search.network.network import Costs, Network

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

    The network itself is used up. Those with one neighbour leave first: that takes a sum per pair
    of labels, of which a tree needs no more, and two neighbours take one per triple.
    """
    costs, edges = network.costs, network.edges
    gone: list[_Gone] = []
    alive = [True] * len(edges)
    seconds = 0.0
    queue = [(_work(network, variable), variable) for variable in range(len(edges))]
    heapify(queue)
    while queue:
        work, variable = heappop(queue)
        if not alive[variable] or work > MOST_WORK or work != _work(network, variable):
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
        for other, _ in around:
            heappush(queue, (_work(network, other), other))
    kept = tuple(variable for variable, stays in enumerate(alive) if stays)
    return Reduced(_renumbered(network, kept, costs), kept, seconds, tuple(gone), len(edges))


def _work(network: Network, variable: int) -> float:
    """Returns the sums that it takes to join a variable's edges; 0 where that is not needed."""
    around = network.edges[variable]
    if len(around) > 2:
        return math.inf
    if len(around) < 2:
        return 0
    return network.size(variable) * math.prod(map(network.size, around))


def _renumbered(network: Network, kept: Sequence[int], costs: Costs) -> Network:
    number = {variable: index for index, variable in enumerate(kept)}
    core = Network(costs)
    for variable in kept:
        core.variable(network.vectors[variable])
    for variable in kept:
        index = number[variable]
        core.edges[index] = {number[o]: m for o, m in sorted(network.edges[variable].items())}
    return core
