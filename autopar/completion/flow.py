"""Minimum cut of a small directed graph."""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 62


class FlowGraph:
    """A directed graph with integer capacities, so that equal cuts are found to be equal."""

    def __init__(self) -> None:
        self._heads: list[list[int]] = []
        self._to: list[int] = []
        self._capacity: list[int] = []
        self.source = self.node()
        self.sink = self.node()

    def node(self) -> int:
        """Adds a node and returns its number."""
        self._heads.append([])
        return len(self._heads) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Adds an edge."""
        for end, to, amount in ((tail, head, capacity), (head, tail, 0)):
            self._heads[end].append(len(self._to))
            self._to.append(to)
            self._capacity.append(amount)

    def source_side(self) -> frozenset[int]:
        """Returns the nodes on the source's side of the minimum cut that is nearest to it.

        Edmonds and Karp, *Theoretical improvements in algorithmic efficiency for network flow
        problems* (1972): augment along shortest paths.
        """
        while path := self._path():
            amount = min(self._capacity[edge] for edge in path)
            for edge in path:
                self._capacity[edge] -= amount
                self._capacity[edge ^ 1] += amount
        return frozenset(self._reached())

    def _reached(self) -> dict[int, int]:
        """Returns the nodes that can be reached, each with the edge that leads there."""
        came = {self.source: -1}
        queue = deque([self.source])
        while queue:
            for edge in self._heads[queue.popleft()]:
                head = self._to[edge]
                if self._capacity[edge] > 0 and head not in came:
                    came[head] = edge
                    queue.append(head)
        return came

    def _path(self) -> list[int]:
        came = self._reached()
        path: list[int] = []
        at = self.sink
        while at != self.source:
            if at not in came:
                return []
            path.append(came[at])
            at = self._to[came[at] ^ 1]
        return path
