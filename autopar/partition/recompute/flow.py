"""The minimum cut of a network: Dinic's algorithm (1970)."""

from __future__ import annotations

from collections import deque

SOURCE, SINK = 0, 1
NOTHING = 1e-15
"""Capacities below are rounding errors."""


class Network:
    """A directed graph with capacities.

    Args:
        count: Number of nodes; `SOURCE` and `SINK` are two of them.
    """

    def __init__(self, count: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(count)]
        self.heads: list[int] = []
        self.rest: list[float] = []

    def add(self, tail: int, head: int, capacity: float) -> None:
        """Adds an edge."""
        for start, end, size in ((tail, head, capacity), (head, tail, 0.0)):
            self.edges[start].append(len(self.heads))
            self.heads.append(end)
            self.rest.append(size)

    def cut(self) -> list[bool]:
        """Returns of each node whether it is on the sink's side of the smallest minimum cut.

        That is the one with the fewest nodes on this side.
        """
        while (levels := self._levels())[SINK] >= 0:
            nexts = [0] * len(self.edges)
            while self._push(levels, nexts):
                pass
        return self._reaching_sink()

    def _levels(self) -> list[int]:
        levels = [-1] * len(self.edges)
        levels[SOURCE] = 0
        queue = deque([SOURCE])
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                head = self.heads[edge]
                if levels[head] < 0 and self.rest[edge] > NOTHING:
                    levels[head] = levels[node] + 1
                    queue.append(head)
        return levels

    def _push(self, levels: list[int], nexts: list[int]) -> float:
        """Sends flow along one shortest path, and returns how much."""
        path: list[int] = []
        node = SOURCE
        while node != SINK:
            edge = self._forward(node, levels, nexts)
            if edge is not None:
                path.append(edge)
                node = self.heads[edge]
            elif path:
                node = self.heads[path.pop() ^ 1]
                nexts[node] += 1
            else:
                return 0.0
        amount = min(self.rest[edge] for edge in path)
        for edge in path:
            self.rest[edge] -= amount
            self.rest[edge ^ 1] += amount
        return amount

    def _forward(self, node: int, levels: list[int], nexts: list[int]) -> int | None:
        edges = self.edges[node]
        while nexts[node] < len(edges):
            edge = edges[nexts[node]]
            if self.rest[edge] > NOTHING and levels[self.heads[edge]] == levels[node] + 1:
                return edge
            nexts[node] += 1
        return None

    def _reaching_sink(self) -> list[bool]:
        reaching = [False] * len(self.edges)
        reaching[SINK] = True
        queue = deque([SINK])
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                tail = self.heads[edge]
                if not reaching[tail] and self.rest[edge ^ 1] > NOTHING:
                    reaching[tail] = True
                    queue.append(tail)
        return reaching
