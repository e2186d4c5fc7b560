"""Minimum cut of a directed graph: which pending sums to keep, which values to save.

Dinitz, "Algorithm for solution of a problem of maximum flow in networks with power estimation"
(1970): all shortest paths are filled before longer ones are looked for. So the whole graph is
visited once per length of a path, however many paths there are.
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 62


class FlowGraph:
    """A directed graph with capacities.

    Args:
        tolerance: Capacities up to this are rounding errors. Those of integers need none, and cuts
            that are equal are found to be equal.
    """

    def __init__(self, tolerance: float = 0) -> None:
        self.tolerance = tolerance
        self._heads: list[list[int]] = []
        self._to: list[int] = []
        self._capacity: list[float] = []
        self.source = self.node()
        self.sink = self.node()

    def node(self) -> int:
        """Adds a node and returns its number."""
        self._heads.append([])
        return len(self._heads) - 1

    def edge(self, tail: int, head: int, capacity: float) -> None:
        """Adds an edge."""
        for end, to, amount in ((tail, head, capacity), (head, tail, 0)):
            self._heads[end].append(len(self._to))
            self._to.append(to)
            self._capacity.append(amount)

    def source_side(self) -> frozenset[int]:
        """Returns the nodes on the source's side of the minimum cut that is nearest to it."""
        return frozenset(self._filled())

    def sink_side(self) -> frozenset[int]:
        """Returns the nodes on the sink's side of the minimum cut that is nearest to it."""
        self._filled()
        found = {self.sink}
        queue = deque(found)
        while queue:
            for edge in self._heads[queue.popleft()]:
                # Of the pair of edges, the other one leads here.
                tail = self._to[edge]
                if tail not in found and self._is_open(edge ^ 1):
                    found.add(tail)
                    queue.append(tail)
        return frozenset(found)

    def _filled(self) -> dict[int, int]:
        """Sends as much as can be sent, and returns the nodes that can still be reached."""
        while self.sink in (distances := self._distances()):
            self._fill(distances)
        return distances

    def _is_open(self, edge: int) -> bool:
        return self._capacity[edge] > self.tolerance

    def _distances(self) -> dict[int, int]:
        """Returns the nodes that can be reached, with the number of edges to each."""
        found = {self.source: 0}
        queue = deque([self.source])
        while queue:
            tail = queue.popleft()
            for edge in self._heads[tail]:
                head = self._to[edge]
                if self._is_open(edge) and head not in found:
                    found[head] = found[tail] + 1
                    queue.append(head)
        return found

    def _fill(self, distances: dict[int, int]) -> None:
        """Sends as much as fits along shortest paths, each edge of which leads one step further."""
        tried = dict.fromkeys(distances, 0)
        path: list[int] = []
        at = self.source
        while True:
            if at == self.sink:
                path = self._augment(path)
                at = self._to[path[-1]] if path else self.source
            edge = self._next_edge(at, distances, tried)
            if edge is not None:
                path.append(edge)
                at = self._to[edge]
            elif path:
                at = self._to[path.pop() ^ 1]
                tried[at] += 1
            else:
                return

    def _next_edge(self, at: int, distances: dict[int, int], tried: dict[int, int]) -> int | None:
        """Returns the first edge, behind those that lead nowhere, by which a path can go on."""
        edges = self._heads[at]
        while tried[at] < len(edges):
            edge = edges[tried[at]]
            if self._is_open(edge) and distances.get(self._to[edge]) == distances[at] + 1:
                return edge
            tried[at] += 1
        return None

    def _augment(self, path: list[int]) -> list[int]:
        """Sends as much as fits along a path, and returns its part before the first full edge."""
        amount = min(self._capacity[edge] for edge in path)
        for edge in path:
            self._capacity[edge] -= amount
            self._capacity[edge ^ 1] += amount
        full = next(at for at, edge in enumerate(path) if not self._is_open(edge))
        return path[:full]
