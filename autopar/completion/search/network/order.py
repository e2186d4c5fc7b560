"""Order: sums that can't travel together, because one is waited for before the next is known.

Which awaited sums are joined isn't known before everything is decided. But if a sum is read by an
op, and what comes of that has a sum again, these are never joined. So along one path through a
program, from an op to a reader of its result and on, every sum is in another bucket.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.completion.problem.buckets import AWAITED, DeferredSums
from autopar.completion.problem.graph import Graph, Node
from autopar.completion.search.network.candidates import Candidates
from autopar.ir.ops.shape.view import VIEWS


class SumsInOrder:
    """The path through a graph on which most sums begin that their own phase waits for.

    Args:
        graph: The graph.
        candidates: Per op.

    Attributes:
        reader: Per awaited value on the path, the op that reads it there.
    """

    def __init__(self, graph: Graph, candidates: Sequence[Candidates]) -> None:
        self.graph = graph
        self.candidates = candidates
        self._firm: dict[tuple[int, int], bool] = {}
        self._sums = [self._begin(node) for node in graph.nodes]
        self.reader = self._followed()

    def _followed(self) -> dict[int, int]:
        """Returns the values and readers of the longest path; of equally long ones, the first."""
        graph = self.graph
        length = [(0, 0)] * len(graph.nodes)
        after: dict[int, tuple[int, int]] = {}
        for node in reversed(graph.nodes):
            for value in node.results:
                for reader, _ in graph.uses[value]:
                    sums, ops = length[reader.index]
                    counted = self._sums[node.index] and self._is_awaited(value, reader)
                    longer = sums + counted, ops + 1
                    if longer > length[node.index]:
                        length[node.index] = longer
                        after[node.index] = value, reader.index
        path: dict[int, int] = {}
        index = max(range(len(length)), key=length.__getitem__, default=-1)
        while index in after:
            value, index = after[index]
            if self._is_awaited(value, graph.nodes[index]):
                path[value] = index
        return path

    def _begin(self, node: Node) -> bool:
        """Whether there is a way to compute an op that leaves a sum which wasn't pending before."""
        ways = self.candidates[node.index].choices
        return any(
            not way.dist.pending and any(form.layout.partial for form in way.produced)
            for way in ways
        )

    def _is_awaited(self, value: int, reader: Node) -> bool:
        """Whether a reader, or what reads its view, waits for a value in the phase that made it."""
        graph = self.graph
        made = graph.producer[value]
        assert made is not None
        if graph.shared(DeferredSums).group[value] != AWAITED or (
            made[0].lifetime != reader.lifetime
        ):
            return False
        if reader.op.kind not in VIEWS:
            return True
        key = value, reader.index
        if key not in self._firm:
            seen = reader.results[0]
            self._firm[key] = any(self._is_awaited(seen, each) for each, _ in graph.uses[seen])
        return self._firm[key]
