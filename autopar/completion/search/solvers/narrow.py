"""Narrow: labels that no better solution has leave a network, which then may be solved exactly.

Messages tell what a solution with a label costs at least. Where a solution is known, labels with
which none is cheaper are of no use (*reduced cost fixing*). What is left has few labels per
variable, so variables can be eliminated whatever neighbours they have, with a table of the costs of
all these (Dechter, *Bucket elimination*, 1999). Then the bound is exact, where messages alone would
creep up to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from autopar.completion.search.effort import PATH_WORK
from autopar.completion.search.network.network import Array, Network
from autopar.completion.search.solvers.trws import Indexes, Trws

MOST_COSTS = 1 << 22
"""The most costs in all tables that an exact solution may take; beyond, messages are faster."""

_Table = tuple[tuple[int, ...], Array]
"""Costs of the labels of variables, which are in ascending order, an axis for each."""


def narrow(trws: Trws, most: float) -> tuple[float, list[int]] | None:
    """Returns the least cost of a network, and labels that cost that; None if it isn't affordable.

    Args:
        trws: Messages of the network, sent at least twice.
        most: What a solution costs that is known. Where none is cheaper, that is returned, with
            labels that messages lead to.
    """
    network, kept = trws.network, [np.flatnonzero(mask) for mask in trws.within(most)]
    if not all(map(len, kept)):
        return most, trws.labels()
    order = _order(network, [len(labels) for labels in kept])
    if order is None:
        return None
    seconds, labels = _solved(network, kept, order)
    if seconds > most:
        return most, trws.labels()
    return seconds, [int(of[label]) for of, label in zip(kept, labels, strict=True)]


def _order(network: Network, sizes: Sequence[int]) -> dict[int, tuple[int, ...]] | None:
    """Returns in which order to eliminate variables, with their neighbours by then.

    One follows another that has the least costs with its neighbours. None if they are too many. One
    with a single label is no neighbour: nothing depends on what it is.

    Args:
        network: The network.
        sizes: Per variable, how many labels are left.
    """
    around = [
        {other for other in edges if sizes[other] > 1} if size > 1 else set()
        for edges, size in zip(network.edges, sizes, strict=True)
    ]

    def costs(variable: int) -> int:
        return sizes[variable] * math.prod(sizes[other] for other in around[variable])

    queue = [(costs(variable), variable) for variable in range(len(around))]
    heapify(queue)
    order: dict[int, tuple[int, ...]] = {}
    left = MOST_COSTS
    while queue:
        work, variable = heappop(queue)
        if variable in order or work != costs(variable):
            continue
        left -= work
        if left < 0:
            return None
        order[variable] = tuple(sorted(around[variable]))
        for other in order[variable]:
            around[other] |= around[variable]
            around[other] -= {other, variable}
        for other in order[variable]:
            heappush(queue, (costs(other), other))
    network.costs.watch.spend(PATH_WORK * (MOST_COSTS - left))
    return order


def _solved(
    network: Network, kept: Sequence[Indexes], order: dict[int, tuple[int, ...]]
) -> tuple[float, list[int]]:
    """Returns the least cost with labels that are left, and which of those cost that."""
    tables = _tables(network, kept)
    best: dict[int, Indexes] = {}
    seconds = 0.0
    for variable, around in order.items():
        total = np.zeros([len(kept[each]) for each in (variable, *around)])
        for table in tables[variable]:
            total += _aligned(table, (variable, *around))
        for each in {other for scope, _ in tables[variable] for other in scope}:
            tables[each] = [table for table in tables[each] if variable not in table[0]]
        best[variable] = total.argmin(axis=0)
        least = total.min(axis=0)
        for other in around:
            tables[other].append((around, least))
        if not around:
            seconds += float(least)
    labels = [0] * len(kept)
    for variable, around in reversed(order.items()):
        labels[variable] = int(best[variable][tuple(labels[other] for other in around)])
    return seconds, labels


def _tables(network: Network, kept: Sequence[Indexes]) -> list[list[_Table]]:
    """Returns per variable the costs that depend on it, of the labels that are left."""
    arrays = network.costs.arrays
    tables: list[list[_Table]] = [
        [((variable,), arrays[vector][kept[variable]])]
        for variable, vector in enumerate(network.vectors)
    ]
    for one, edges in enumerate(network.edges):
        for other, matrix in edges.items():
            if one < other:
                costs = arrays[matrix][np.ix_(kept[one], kept[other])]
                scope = tuple(each for each in (one, other) if len(kept[each]) > 1)
                table = scope, costs.reshape([len(kept[each]) for each in scope])
                for each in scope or (one,):
                    tables[each].append(table)
    return tables


def _aligned(table: _Table, variables: tuple[int, ...]) -> Array:
    """Returns costs with an axis for each of some variables, of which the first may be anywhere."""
    scope, costs = table
    first = variables[0]
    if first in scope:
        costs = np.moveaxis(costs, scope.index(first), 0)
    sizes = iter(costs.shape)
    return costs.reshape([next(sizes) if each in scope else 1 for each in variables])
