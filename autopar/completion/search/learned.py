"""Learned: what searches of a graph know, whatever price they search at."""

from __future__ import annotations

from functools import cached_property

from autopar.completion.problem.graph import Graph
from autopar.completion.problem.price import Price
from autopar.completion.propagate.solve import Solution
from autopar.completion.search.bounds.proof import Proof
from autopar.completion.search.incumbents import Incumbents
from autopar.completion.search.network.candidates import Around
from autopar.completion.search.network.network import Array, Costs
from autopar.completion.search.network.tables import Tables
from autopar.completion.search.watch import Watch

CLOSE = 1e-6
"""Relative gap at which a plan counts as the best."""

ENOUGH, ROOM = 1e-3, 5e-3
"""The same for large programs, which take longer to search and to start again."""

FEW_OPS = 500
"""Up to so many ops a program isn't large."""


class Learned:
    """The tables of a graph, and what was good or proven before: all of it saves time.

    Args:
        graph: With the user's pins.
        watch: Says when the best plan so far is to be returned, and is told how far a search is.
        incumbents: Presets, to start from the best of them too; None for a search without.
        tables: The ways to compute each op, and what goes with each; by default all ways.
        price: Prices plans exactly, and knows some already; a new one by default.
    """

    def __init__(
        self,
        graph: Graph,
        watch: Watch,
        incumbents: Incumbents | None = None,
        tables: Tables | None = None,
        price: Price | None = None,
    ) -> None:
        self.graph, self.watch, self.incumbents = graph, watch, incumbents
        # Without presets there is nothing to fall back on before the first model.
        unwatched = watch if incumbents is not None else Watch()
        self.tables = tables or Tables(graph, unwatched)
        self.costs = Costs(watch if tables is not None else unwatched)
        self.price = price or Price(graph)
        self.labels: list[list[int]] = []
        """Of earlier runs and of starts: what was good at one price is a start at another."""
        self.solutions: list[Solution] = []
        """The best at other prices."""
        self.tried_presets: set[str] = set()
        """The presets from which was started."""
        self.proof: Proof | None = None
        self.messages: Array | None = None

    def around(self, around: Around, watch: Watch | None = None) -> Learned:
        """Returns what is known of the plans that have something in common.

        Args:
            around: What they have in common.
            watch: Says when their search ends; by default as this one's.
        """
        watch = watch or self.watch
        tables = Tables(self.graph, watch, around)
        return Learned(self.graph, watch, tables=tables, price=self.price)

    def varied(self, graph: Graph) -> Learned:
        """Returns what is known of the same ops with other pins.

        Args:
            graph: What `repinned` returned for the graph.
        """
        is_known = self.is_affordable
        tables = self.tables.varied(graph) if is_known else Tables(graph, self.watch)
        return Learned(graph, self.watch, tables=tables, price=self.price)

    def forget_proof(self) -> None:
        """Lets go of the proof, which takes much memory."""
        self.proof = self.messages = None

    @property
    def precision(self) -> float:
        """The relative gap at which a plan counts as the best before anything is proven."""
        return CLOSE if self.is_small else ENOUGH

    @property
    def is_small(self) -> bool:
        """Whether the program is so small that the search goes on until a plan is the best."""
        return len(self.graph.nodes) <= FEW_OPS

    @cached_property
    def is_affordable(self) -> bool:
        """Whether all ways to compute every op can be compared with the work that there is."""
        return self.watch.is_worth(self.tables.likely_work)
