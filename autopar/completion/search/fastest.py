"""Search: the plan with the least predicted seconds, among all ways to compute every op.

What the user pinned stays; everything else is free. A model of the graph is solved by elimination
and message passing, which also prove how fast a plan can be at most. Reshards are planned only
where a solution has them: where one turns out to take longer than its bound, the model learns
that, and is solved again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from autopar.completion.call import Choice
from autopar.completion.graph import Graph
from autopar.completion.price import Price
from autopar.completion.search.candidates import CandidateTable
from autopar.completion.search.dual import Dual
from autopar.completion.search.eliminate import eliminate
from autopar.completion.search.held import Held
from autopar.completion.search.improve import improve
from autopar.completion.search.model import Model, build_model
from autopar.completion.search.transfer import Transfers
from autopar.completion.search.watch import Progress, Watch
from autopar.completion.solve import Solution
from autopar.completion.space import Form
from autopar.ir.layout import Origin

MAX_ROUNDS = 12
"""How often the model may learn of reshards; by then most plans are settled."""

MAX_ASCENTS = 200
"""How often messages are sent in a round, if the bound still rises."""

CHECKED = 10
"""After so many ascents labels are looked at."""

CLOSE = 1e-6
"""Relative gap at which a plan counts as the best."""


ENOUGH = 1e-4
"""The same for large programs, which take longer to search."""

FEW_OPS = 500
"""Up to so many ops a program isn't large."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        solution: The best plan.
        seconds: Its predicted seconds, with the price of the bytes that it keeps, if any.
        bound_seconds: Seconds that every plan takes at least.
    """

    solution: Solution
    seconds: float
    bound_seconds: float

    @property
    def gap(self) -> float:
        """The part of the seconds that the bound leaves open."""
        if self.seconds <= self.bound_seconds or not self.seconds:
            return 0.0
        return 1 - self.bound_seconds / self.seconds


def search(graph: Graph, *, watch: Watch | None = None) -> Found:
    """Returns the best plan for a graph, with a bound.

    Args:
        graph: With the user's pins.
        watch: Says when the best plan so far is to be returned, and is told how far the search is.
    """
    return Search(graph, watch or Watch()).run()


@dataclass
class Search:
    """A search that keeps what it learns of a graph for other prices of the bytes of a rank.

    Attributes:
        graph: With the user's pins.
        known: Labels of earlier runs: what was good at one price is a start at another.
        watch: Says when the best plan so far is to be returned, and is told how far the search is.
    """

    graph: Graph
    watch: Watch
    byte_seconds: float = field(init=False, default=0.0)
    held: Held = field(init=False)
    price: Price = field(init=False)
    transfers: Transfers = field(init=False)
    known: list[list[int]] = field(init=False, default_factory=list)
    best: Found | None = field(init=False, default=None)
    bound: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.price = Price(self.graph)
        self.held = Held(self.graph)
        self.transfers = Transfers(self.graph.space)
        table = CandidateTable(self.graph)
        self.candidates = [table.of(node) for node in self.graph.nodes]

    def run(self, byte_seconds: float = 0.0) -> Found:
        """Returns the best plan, with a bound.

        Args:
            byte_seconds: The price of a byte that a rank keeps for long; it is part of what is
                minimized, and of the bound.
        """
        self.byte_seconds, self.best, self.bound = byte_seconds, None, 0.0
        tried: list[list[int]] = []
        for number in range(1, MAX_ROUNDS + 1):
            self._tell(number)
            model = build_model(
                self.graph, self.candidates, self.transfers, self.held, self.byte_seconds
            )
            labels = self._solve(model)
            learned = self._learn(model, labels)
            self._keep(model, labels)
            tried.append(labels)
            if not learned or self._is_close() or self.watch.is_late:
                break
        self.known += tried
        assert self.best is not None
        return Found(self.best.solution, self.best.seconds, self.bound)

    def _is_close(self) -> bool:
        """Whether the best plan is so close to the bound that a better one isn't worth the time."""
        small = len(self.graph.nodes) <= FEW_OPS
        seconds = self.best.seconds if self.best is not None else math.inf
        return seconds - self.bound <= (CLOSE if small else ENOUGH) * seconds

    def _tell(self, number: int) -> None:
        seconds = None if self.best is None else self.best.seconds
        self.watch.tell(Progress(f"searching, round {number}", seconds, self.bound))

    def _solve(self, model: Model) -> list[int]:
        """Returns the best labels found of a model, and raises the bound."""
        whole = model.network.copy()
        reduced = eliminate(model.network)
        dual = Dual(reduced.core)
        best: list[int] = []
        least = before = math.inf
        for ascent in range(1, MAX_ASCENTS + 1):
            bound = dual.ascend() + reduced.seconds
            if ascent % CHECKED == 0 or not reduced.kept:
                labels = reduced.labels(dual.labels())
                seconds = whole.seconds(labels)
                if seconds < least:
                    best, least = labels, seconds
                if least - bound <= CLOSE * least or bound - before <= CLOSE * bound:
                    break
                before = bound
                if self.watch.is_late:
                    break
        self.bound = max(self.bound, bound)
        if least - bound > CLOSE * least:
            starts = [best, *sorted(self.known, key=whole.seconds)[:1]]
            found = [
                reduced.labels(improve(reduced.core, [start[at] for at in reduced.kept]))
                for start in starts
            ]
            best = min(found, key=whole.seconds)
        return best

    def _learn(self, model: Model, labels: Sequence[int]) -> bool:
        """Prices exactly what labels stand for; returns whether that makes a difference."""
        bodies = {(c, labels[at]) for at, c in enumerate(model.candidates)}
        changed = [candidates.learn(label) for candidates, label in bodies]
        return self.transfers.learn(model.transfers_of(labels)) or any(changed)

    def _keep(self, model: Model, labels: Sequence[int]) -> None:
        """Prices the plan that labels stand for, and keeps it if it is the best so far."""
        choices = model.choices(labels)
        forms = model.forms(labels)
        seconds = self.price.total(choices, forms)
        if self.byte_seconds:
            seconds += self.byte_seconds * self.held.bytes(choices, forms)
        if self.best is None or seconds < self.best.seconds:
            solution = _solution(self.graph, choices, forms)
            self.best = Found(solution, seconds, 0.0)


def _solution(graph: Graph, choices: list[Choice], forms: list[Form]) -> Solution:
    for out, into in graph.aliases:
        if graph.pins[out] is None:
            detail = f"shares storage with %{graph.values[into].name}"
            graph.origins[out] = Origin("preset", detail)
    chosen = frozenset(
        node.index
        for node in graph.nodes
        if choices[node.index].splits.items or choices[node.index].dist.pending
    )
    nodes, values = len(graph.nodes), len(graph.values)
    sources: list[dict[str, int]] = [{} for _ in range(nodes)]
    origins: list[dict[str, int]] = [{} for _ in range(values)]
    return Solution(graph, choices, forms, sources, origins, chosen, frozenset())
