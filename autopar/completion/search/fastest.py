"""Search: the plan with the least predicted seconds, among all ways to compute every op.

What the user pinned stays; everything else is free. A search runs at any price of the bytes that a
rank holds, and proves how fast a plan can be at most (`run`); what it learns at one price it knows
at the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.search.found import Found
from autopar.completion.search.incumbents import Incumbent, Incumbents
from autopar.completion.search.learned import Learned
from autopar.completion.search.network.memory_price import FREE, MemoryPrice
from autopar.completion.search.run import Run
from autopar.completion.search.watch import Watch


class Search:
    """The plans of a graph that are found, and bounds of all of them.

    Args:
        graph: With the user's pins.
        watch: Says when the best plan so far is to be returned, and is told how far the search is.
        incumbents: Presets, to start from the best of them too; None for a search without.
    """

    def __init__(self, graph: Graph, watch: Watch, incumbents: Incumbents | None = None) -> None:
        self.graph, self.watch = graph, watch
        self.learned = Learned(graph, watch, incumbents)
        self._free = Run(self.learned)
        """The run without a price: its bound only rises, and its best plan only gets faster."""
        self._found: Found | None = None
        self._proven: Found | None = None

    def best_at(self, price: MemoryPrice = FREE, above: float = float("inf")) -> Found:
        """Returns the best plan, with a bound. Without a price it is searched only once.

        Args:
            price: Of the bytes that a rank holds; it is part of what is minimized. With one, no
                bound is proven.
            above: The proof ends once no plan can take less than that many seconds.
        """
        if not price.is_free:
            return Run(self.learned, price).find()
        if self._proven is None:
            self.find()
            self._proven = self._free.prove(above)
        return self._proven

    def find(self) -> Found:
        """Returns the best plan without a price before anything is proven; searched only once."""
        if self._found is None:
            self._found = self._free.find()
        return self._found

    def rule_out(self, above: float) -> float:
        """Returns a bound of plans without a price; where none is found yet, it is proven.

        Args:
            above: The proof ends once no plan can take less than that many seconds, or if it
                doesn't seem to get there.
        """
        if self._found is None:
            self._free.rule_out(above)
        return self._free.bound

    def bound_at(self, price: MemoryPrice, above: float) -> float:
        """Returns a bound of the seconds of plans, with the price of the bytes that they hold.

        Args:
            price: Of a byte.
            above: The proof ends once no plan can take less, or if it doesn't seem to get there.
        """
        return Run(self.learned, price).bound_above(above)

    def near(self, graph: Graph, starts: Sequence[Sequence[Choice]]) -> Found:
        """Returns the best plan found with other pins, from some whose choices are known.

        Args:
            graph: What `repinned` returned for the graph of this search.
            starts: Choices per op; those that pins forbid don't count.
        """
        return Run(self.learned.varied(graph)).near(starts)

    def presets(self, gap: float) -> Sequence[Incumbent]:
        """Returns the presets that are worth their time at a gap, the fastest first."""
        return self._free.presets(gap)

    @property
    def is_cut(self) -> bool:
        """Whether with more work a better plan may be found, or a better bound."""
        return self.watch.is_spent or not self.learned.is_affordable
