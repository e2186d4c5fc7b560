"""Dual: a proven lower bound of a network's least cost, and labels close to it.

Sequential tree-reweighted message passing (Kolmogorov, *Convergent tree-reweighted message passing
for energy minimization*, 2006): messages move costs between variables so that each can be minimized
on its own; what these minima add up to is a bound of every solution, and never falls. Variables
that are alike and no neighbours, as those of repeated layers, are visited together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.completion.search.effort import MATRIX_WORK, MESSAGE_WORK
from autopar.completion.search.network import Array, Network

Indexes = NDArray[np.intp]

SLACK = 1e-9
"""Part of a bound that is given up to the rounding of sums."""


@dataclass(frozen=True)
class _Slot:
    """An edge that each variable of a group has: to other variables, but with the same costs.

    Attributes:
        matrix: The costs, the group's variable first.
        others: The neighbours.
        into: Where the messages to the group's variables are, a row each.
        out: Where the messages to the neighbours are.
        before: Which of the neighbours are visited before the group.
    """

    matrix: Array
    others: Indexes
    into: Indexes
    out: Indexes
    before: NDArray[np.bool_]


@dataclass(frozen=True)
class _Group:
    """Variables with the same costs and the same kinds of edges, none of them neighbours."""

    variables: Indexes
    vector: Array
    slots: tuple[_Slot, ...]
    share: Array
    """Per variable, the part of its costs that each chain through it gets."""


class Dual:
    """The messages of a network.

    Args:
        network: The network; it isn't changed.
        messages: Those of a network of the same variables and edges at other costs, to begin with.
    """

    def __init__(self, network: Network, messages: Array | None = None) -> None:
        self.network = network
        self.bound = -np.inf
        self._groups = _grouped(network)
        slots = [(len(group.variables), s) for group in self._groups for s in group.slots]
        looked_at = sum(count * slot.matrix.size for count, slot in slots)
        self._work = MATRIX_WORK * looked_at + MESSAGE_WORK * len(slots)
        size = sum(_directed_sizes(network))
        fits = messages is not None and len(messages) == size
        self.messages = messages if messages is not None and fits else np.zeros(size)

    def ascend(self) -> float:
        """Sends all messages once in both directions; returns the bound, which never falls."""
        self.network.costs.watch.spend(self._work)
        for group in self._groups:
            self._send(group, forward=True)
        total = 0.0
        for group in reversed(self._groups):
            total += self._send(group, forward=False)
        self.bound = max(self.bound, total - SLACK * abs(total))
        return self.bound

    def labels(self) -> list[int]:
        """Returns labels: each variable's best, given those before and messages from the rest."""
        labels = np.zeros(len(self.network.vectors), dtype=np.intp)
        for group in self._groups:
            total = np.repeat(group.vector[None, :], len(group.variables), axis=0)
            for slot in group.slots:
                given = slot.matrix[:, labels[slot.others]].T
                total += np.where(slot.before[:, None], given, self.messages[slot.into])
            labels[group.variables] = total.argmin(axis=1)
        return [int(label) for label in labels]

    def _send(self, group: _Group, *, forward: bool) -> float:
        """Sends a group's messages ahead; returns what is thereby known to be spent."""
        messages = self.messages
        received = [messages[slot.into] for slot in group.slots]
        total = np.repeat(group.vector[None, :], len(group.variables), axis=0)
        for message in received:
            total += message
        spent = 0.0
        if not forward:
            least = total.min(axis=1, keepdims=True)
            total -= least
            spent = float(least.sum())
        shared = total * group.share[:, None]
        for slot, message in zip(group.slots, received, strict=True):
            ahead = ~slot.before if forward else slot.before
            if not ahead.any():
                continue
            sent = ((shared - message)[ahead][:, :, None] + slot.matrix[None]).min(axis=1)
            least = sent.min(axis=1, keepdims=True)
            messages[slot.out[ahead]] = sent - least
            spent += float(least.sum())
        return spent


def _directed_sizes(network: Network) -> Iterator[int]:
    for edges in network.edges:
        for other in edges:
            yield network.size(other)


def _grouped(network: Network) -> list[_Group]:
    """Returns the variables in groups, in the order of the first of each."""
    into: dict[tuple[int, int], int] = {}
    offset = 0
    for one, edges in enumerate(network.edges):
        for other in edges:
            into[one, other] = offset  # messages from `one` to `other`
            offset += network.size(other)
    members = _alike(network)
    rank = np.zeros(len(network.vectors), dtype=np.intp)
    for number, group in enumerate(members):
        rank[group] = number
    return [_group(network, group, rank, into) for group in members]


def _alike(network: Network) -> list[list[int]]:
    """Returns independent sets of variables whose costs and edges are alike."""
    groups: dict[object, list[list[int]]] = {}
    for variable, edges in enumerate(network.edges):
        key = (network.vectors[variable], *sorted(edges.values()))
        for group in groups.setdefault(key, []):
            if edges.keys().isdisjoint(group):
                group.append(variable)
                break
        else:
            groups[key].append([variable])
    return sorted((group for some in groups.values() for group in some), key=lambda g: g[0])


def _group(
    network: Network, members: Sequence[int], rank: Indexes, into: dict[tuple[int, int], int]
) -> _Group:
    # Edges with equal costs are matched by the neighbours' order.
    ordered = [
        sorted(network.edges[v].items(), key=lambda edge: (edge[1], edge[0])) for v in members
    ]
    first = members[0]
    size = network.size(first)
    slots = []
    ahead = np.zeros(len(members))
    behind = np.zeros(len(members))
    for at, (_, matrix) in enumerate(ordered[0]):
        others = np.array([edges[at][0] for edges in ordered], dtype=np.intp)
        incoming = np.array([into[o, v] for o, v in zip(others, members, strict=True)])
        outgoing = np.array([into[v, o] for o, v in zip(others, members, strict=True)])
        width = network.size(int(others[0]))
        before = rank[others] < rank[first]
        ahead += ~before
        behind += before
        slots.append(
            _Slot(
                network.costs.arrays[matrix],
                others,
                incoming[:, None] + np.arange(size),
                outgoing[:, None] + np.arange(width),
                before,
            )
        )
    share = 1.0 / np.maximum(1.0, np.maximum(ahead, behind))
    vector = network.costs.arrays[network.vectors[first]]
    return _Group(np.array(members, dtype=np.intp), vector, tuple(slots), share)
