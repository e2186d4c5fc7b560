"""Tables: the ways to compute each op that a search considers, and what goes with each.

They are made when they are first asked for, so that a search whose time is up before that can do
without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property

from autopar.completion.problem.graph import Graph
from autopar.completion.search.network.candidates import Around, Candidates, CandidateTable
from autopar.completion.search.network.memory_price import ResidentValues
from autopar.completion.search.network.prune import Pruning
from autopar.completion.search.network.transfer import LeastTransfers, Transfers, most_bytes
from autopar.completion.search.watch import Watch


class Tables:
    """What is known of a graph's plans.

    Args:
        graph: With the user's pins.
        watch: Says when no more tables are to be made.
        around: What all plans are to have in common; nothing by default.
    """

    def __init__(self, graph: Graph, watch: Watch, around: Around | None = None) -> None:
        self.graph = graph
        self.watch = watch
        self.around = around
        self._all = CandidateTable(graph, watch, around)

    @cached_property
    def candidates(self) -> Sequence[Candidates]:
        """The ways to compute each op, in order of the nodes.

        Raises:
            TimeIsUp: If the search had to end before.
        """
        pruning = Pruning(self.graph)
        candidates = []
        for node in self.graph.nodes:
            self.watch.check()
            candidates.append(pruning.pruned(node, self._all.candidates_of(node)))
        return candidates

    @cached_property
    def likely_work(self) -> float:
        """About the seconds that it takes to derive and to compare all candidates."""
        return self._all.likely_work()

    @cached_property
    def resident(self) -> ResidentValues:
        """The bytes that go with a way."""
        pairs = zip(self.graph.nodes, self.candidates, strict=True)
        fewer = {node.index for node, kept in pairs if kept is not self._all.candidates_of(node)}
        return ResidentValues(self.graph, fewer)

    @cached_property
    def transfers(self) -> Transfers:
        """What reshards take."""
        return Transfers(self.graph.space, self._most_bytes, self.watch)

    @cached_property
    def least(self) -> LeastTransfers:
        """What reshards take at least."""
        return LeastTransfers(self.graph.space, self._most_bytes, self.watch)

    def forget_least(self) -> None:
        """Lets go of what reshards take at least: it takes as much memory as all the rest."""
        vars(self).pop("least", None)

    @cached_property
    def _most_bytes(self) -> Mapping[str, int]:
        return most_bytes(self.graph, self.candidates)

    def varied(self, graph: Graph) -> Tables:
        """Returns tables of the same ops with other pins, which share what there is of costs."""
        other = copy(self)
        table, decided = CandidateTable(graph), self.graph.decided
        other.graph, other._all = graph, table
        other.candidates = [
            known
            if graph.decided.get(index) is decided.get(index)
            else table.candidates_of(graph.nodes[index])
            for index, known in enumerate(self.candidates)
        ]
        return other
