"""TRW-S: a proven lower bound of a network's least cost, and labels close to it.

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
from autopar.completion.search.network.network import Array, Network

Indexes = NDArray[np.intp]

Mask = NDArray[np.bool_]

Places = Indexes | slice
"""A row of places in an array per variable; of one variable a slice, which takes less time."""

SLACK = 1e-9
"""Part of a bound that is given up to the rounding of sums."""


@dataclass(frozen=True)
class _Way:
    """The messages of a slot that go forward, or back.

    Attributes:
        rows: Of which variables of the group; None for all.
        out: Where they are.
    """

    rows: NDArray[np.bool_] | None
    out: Places

    @classmethod
    def from_rows(cls, rows: NDArray[np.bool_], out: Indexes) -> _Way | None:
        """Returns the messages of some rows; None if there are none."""
        if not rows.any():
            return None
        return cls(None, _places(out)) if rows.all() else cls(rows, _places(out[rows]))


def _places(indexes: Indexes) -> Places:
    """Returns rows of indexes as what reads and writes them fastest."""
    first, *others = indexes
    return indexes if others else slice(first[0], first[-1] + 1)


@dataclass(frozen=True)
class _Slot:
    """An edge that each variable of a group has: to other variables, but with the same costs.

    Attributes:
        matrix: The costs, the group's variable first.
        others: The neighbours.
        into: Where the messages to the group's variables are, a row each.
        before: Which of the neighbours are visited before the group.
        ahead: The messages to neighbours that are visited after the group; None if there are none.
        back: Those to neighbours before.
    """

    matrix: Array
    others: Indexes
    into: Places
    before: NDArray[np.bool_]
    ahead: _Way | None
    back: _Way | None


@dataclass(frozen=True)
class _Group:
    """Variables with the same costs and the same kinds of edges, none of them neighbours."""

    variables: Indexes
    slots: tuple[_Slot, ...]
    costs: Array
    """Those of the labels, a row for each variable if there are several."""
    share: Array
    """Per variable, the part of its costs that each chain through it gets."""


class Trws:
    """Tree-reweighted message passing (TRW-S): the messages of a network.

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
        self._above: list[Array] = []
        self._before = -np.inf

    def ascend(self) -> float:
        """Sends all messages once in both directions; returns the bound, which never falls."""
        self.network.costs.watch.spend(self._work)
        self._above, self._before = [], self.bound
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
            total = np.atleast_2d(group.costs).copy()
            for slot in group.slots:
                given = slot.matrix[:, labels[slot.others]].T
                total += np.where(slot.before[:, None], given, self.messages[slot.into])
            labels[group.variables] = total.argmin(axis=1)
        return [int(label) for label in labels]

    def within(self, most: float) -> list[Mask]:
        """Returns which labels a variable has in solutions that cost no more than something.

        When a variable got its messages on the way back, each of its labels was known to cost as
        much more than its best one as is left of its costs. The bound was at least what it had been
        before that way.

        Args:
            most: What they cost at most.
        """
        every: list[Mask] = [np.empty(0, dtype=bool)] * len(self.network.vectors)
        for group, above in zip(reversed(self._groups), self._above, strict=True):
            masks = np.atleast_2d(self._before + above <= most)
            for variable, mask in zip(group.variables, masks, strict=True):
                every[variable] = mask
        return every

    def _send(self, group: _Group, *, forward: bool) -> float:
        """Sends a group's messages ahead; returns what is thereby known to be spent."""
        messages = self.messages
        received = [messages[slot.into] for slot in group.slots]
        total = group.costs.copy()
        for message in received:
            total += message
        spent = 0.0
        if not forward:
            least = np.minimum.reduce(total, axis=-1, keepdims=True)
            total -= least
            spent = float(np.add.reduce(least, axis=None))
            self._above.append(total.copy())
        total *= group.share
        for slot, message in zip(group.slots, received, strict=True):
            way = slot.ahead if forward else slot.back
            if way is None:
                continue
            shared = total - message if way.rows is None else (total - message)[way.rows]
            sent = np.minimum.reduce(shared[..., None] + slot.matrix, axis=-2)
            least = np.minimum.reduce(sent, axis=-1, keepdims=True)
            messages[way.out] = sent - least
            spent += float(np.add.reduce(least, axis=None))
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
    for index, (_, matrix) in enumerate(ordered[0]):
        others = np.array([edges[index][0] for edges in ordered], dtype=np.intp)
        incoming = np.array([into[o, v] for o, v in zip(others, members, strict=True)])
        outgoing = np.array([into[v, o] for o, v in zip(others, members, strict=True)])
        out = outgoing[:, None] + np.arange(network.size(int(others[0])))
        before = rank[others] < rank[first]
        ahead += ~before
        behind += before
        slots.append(
            _Slot(
                network.costs.arrays[matrix],
                others,
                _places(incoming[:, None] + np.arange(size)),
                before,
                _Way.from_rows(~before, out),
                _Way.from_rows(before, out),
            )
        )
    share = 1.0 / np.maximum(1.0, np.maximum(ahead, behind))
    costs = network.costs.arrays[network.vectors[first]]
    if len(members) > 1:
        costs, share = np.repeat(costs[None, :], len(members), axis=0), share[:, None]
    return _Group(np.array(members, dtype=np.intp), tuple(slots), costs, share)
