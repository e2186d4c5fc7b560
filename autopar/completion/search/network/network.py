"""Network: variables with a cost per label, and tables of costs between two of them.

Search asks for a label of every variable that minimizes the sum of all costs. Programs repeat
themselves, so costs are interned: variables and edges that are alike share an array, and what is
derived from shared arrays is derived once (`Costs`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from autopar.completion.search.effort import MATRIX_WORK, PATH_WORK
from autopar.completion.search.watch import Watch

Array = NDArray[np.float64]

IMPOSSIBLE = 1e6
"""Seconds of what can't be. Finite, so that differences of costs are defined."""

AT_ONCE = 2**16
"""Up to so many sums are faster made together than label by label."""

MOST_BYTES = 2**28
"""Of arrays that are kept because most of them are the same when more is known."""


class Costs:
    """Interned arrays: vectors of a variable's costs, matrices of an edge's.

    Args:
        watch: Counts the work of making them; by default nobody does.

    Attributes:
        arrays: By their numbers.
        nbytes: Their bytes in memory.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self.watch = watch or Watch()
        self.arrays: list[Array] = []
        self._known: dict[Hashable, int] = {}
        self._argmins: dict[tuple[int, ...], int] = {}
        self.nbytes = 0

    def kept(self) -> Costs:
        """Returns these costs, or none where they take much memory: for a network to come."""
        return self if self.nbytes <= MOST_BYTES else Costs(self.watch)

    def number_of(self, key: Hashable, make: Callable[[], Array]) -> int:
        """Returns the number of the array with a key, which is made if it isn't there."""
        number = self._known.get(key)
        if number is None:
            array = make()
            self.watch.spend(MATRIX_WORK * array.size)
            number = self._known[key] = len(self.arrays)
            self.arrays.append(array)
            self.nbytes += array.nbytes if array.base is None else 0
        return number

    def add(self, one: int, other: int) -> int:
        """Returns the number of the sum of two arrays."""
        key = ("add", min(one, other), max(one, other))
        return self.number_of(key, lambda: self.arrays[one] + self.arrays[other])

    def transpose(self, matrix: int) -> int:
        """Returns the number of the matrix seen from its other side."""
        number = self.number_of(("transpose", matrix), lambda: self.arrays[matrix].T)
        self._known.setdefault(("transpose", number), matrix)
        return number

    def fold(self, vector: int, matrix: int) -> int:
        """Returns what a variable costs its one neighbour: the least over its own labels.

        Args:
            vector: The variable's costs.
            matrix: The edge, the variable first.
        """
        key = ("fold", vector, matrix)
        return self.number_of(
            key, lambda: (self.arrays[vector][:, None] + self.arrays[matrix]).min(axis=0)
        )

    def join(self, vector: int, first: int, second: int) -> int:
        """Returns the edge between a variable's two neighbours: the least over its own labels.

        Args:
            vector: The variable's costs.
            first: The edge to one neighbour, the variable first.
            second: The edge to the other.

        Raises:
            TimeIsUp: If the search had to end before.
        """

        def make() -> Array:
            own, left, right = self.arrays[vector], self.arrays[first], self.arrays[second]
            self.watch.spend(PATH_WORK * len(own) * left.shape[1] * right.shape[1])
            self.watch.check()
            left = left + own[:, None]
            if len(own) * left.shape[1] * right.shape[1] <= AT_ONCE:
                joined: Array = (left[:, :, None] + right[:, None, :]).min(axis=0)
                return joined
            least: Array = left[0][:, None] + right[0][None, :]
            total = np.empty_like(least)
            for label in range(1, len(own)):
                np.add(left[label][:, None], right[label][None, :], out=total)
                np.minimum(least, total, out=least)
            return least

        return self.number_of(("join", vector, first, second), make)

    def argmin(self, vector: int, edges: Sequence[tuple[int, int]]) -> int:
        """Returns a variable's best label, given its neighbours'.

        Args:
            vector: The variable's costs.
            edges: Per neighbour, the edge, the variable first, and the neighbour's label.
        """
        key = (vector, *(number for edge in edges for number in edge))
        found = self._argmins.get(key)
        if found is None:
            total = self.arrays[vector].copy()
            for matrix, label in edges:
                total += self.arrays[matrix][:, label]
            found = self._argmins[key] = int(total.argmin())
        return found


class Network:
    """Variables and edges, by the numbers of their costs.

    Attributes:
        costs: The arrays.
        vectors: Per variable, its costs.
        edges: Per variable, the edge to each neighbour, the variable first.
    """

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = Costs() if costs is None else costs
        self.vectors: list[int] = []
        self.edges: list[dict[int, int]] = []

    def variable(self, vector: int) -> int:
        """Adds a variable and returns its number."""
        self.vectors.append(vector)
        self.edges.append({})
        return len(self.vectors) - 1

    def charge(self, variable: int, vector: int) -> None:
        """Adds costs to a variable's labels."""
        self.vectors[variable] = self.costs.add(self.vectors[variable], vector)

    def connect(self, one: int, other: int, matrix: int) -> None:
        """Adds costs between two variables.

        Args:
            one, other: The variables.
            matrix: Their costs, `one` first.
        """
        known = self.edges[one].get(other)
        if known is not None:
            matrix = self.costs.add(known, matrix)
        self.edges[one][other] = matrix
        self.edges[other][one] = self.costs.transpose(matrix)

    def copy(self) -> Network:
        """Returns a network with the same costs, which can be changed by itself."""
        other = Network(self.costs)
        other.vectors = list(self.vectors)
        other.edges = [dict(edges) for edges in self.edges]
        return other

    def size(self, variable: int) -> int:
        """Returns the number of a variable's labels."""
        return len(self.costs.arrays[self.vectors[variable]])

    def cost_of(self, labels: Sequence[int]) -> float:
        """Returns the cost of a label for each variable."""
        arrays = self.costs.arrays
        total = sum(
            float(arrays[vector][label]) for vector, label in zip(self.vectors, labels, strict=True)
        )
        for one, edges in enumerate(self.edges):
            for other, matrix in edges.items():
                if one < other:
                    total += float(arrays[matrix][labels[one], labels[other]])
        return total
