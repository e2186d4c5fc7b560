"""Plans: the best plan of a run so far, and the models by which faster ones are found."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.completion.problem.op_strategies import Choice
from autopar.completion.search.bounds.proof import Proof
from autopar.completion.search.effort import CHECKED, MAX_ASCENTS, MAX_ROUNDS, ROUND_WORK
from autopar.completion.search.found import Found, solution_of, tied
from autopar.completion.search.learned import CLOSE, ENOUGH, Learned
from autopar.completion.search.network.memory_price import FREE, MemoryPrice
from autopar.completion.search.network.model import Model, build_model
from autopar.completion.search.network.network import Network
from autopar.completion.search.solvers.eliminate import eliminate
from autopar.completion.search.solvers.improve import improve_whole
from autopar.completion.search.solvers.trws import Trws
from autopar.completion.search.starts import labels_of
from autopar.completion.search.watch import Progress

FAR = 0.03
"""At such a gap to what a large model promises, it isn't searched on."""


class Plans:
    """A run of a search: the best plan so far, and models by which better ones are found.

    Args:
        learned: What is known of the graph; a run adds to it.
        memory_price: Of the bytes that a rank holds; it is part of what is minimized.

    Attributes:
        best: The best plan so far.
        expected: About the seconds of the fastest plan, by the model.
        bound: Seconds that every plan takes at least, with the price.
    """

    def __init__(self, learned: Learned, memory_price: MemoryPrice = FREE) -> None:
        self.learned, self.memory_price = learned, memory_price
        self.graph, self.watch, self.tables = learned.graph, learned.watch, learned.tables
        self.best: Found | None = None
        self.expected = self.bound = 0.0

    @property
    def _is_small(self) -> bool:
        return self.learned.is_small

    @property
    def _is_thorough(self) -> bool:
        """Whether plans are improved with all ways to compute every op at hand."""
        return self._is_small and self.learned.is_affordable

    @property
    def _is_far(self) -> bool:
        """Whether the best plan takes much longer than the model promises, or no bound is near."""
        return not self._is_close(max(self.bound, self.expected), FAR)

    @property
    def _is_for_presets(self) -> bool:
        """Whether the rest of the work is for presets, which may be faster than what was found."""
        return self.watch.is_half_spent and self._is_far

    def _found(self) -> Found:
        assert self.best is not None
        return Found(self.best.solution, self.best.seconds, self.bound)

    def _model(self, *, together: bool = True) -> Model:
        self.watch.spend(ROUND_WORK * len(self.graph.nodes))
        self.learned.costs = self.learned.costs.kept()
        return build_model(
            self.graph,
            self.tables.candidates,
            self.tables.transfers,
            self.tables.resident,
            self.memory_price,
            together=together,
            costs=self.learned.costs,
        )

    def _solve(self, network: Network) -> list[int]:
        """Returns the best labels found of a model, and raises what is expected."""
        whole = network.copy()
        reduced = eliminate(network)
        trws = Trws(reduced.core)
        best: list[int] = []
        least = before = math.inf
        for ascent in range(1, MAX_ASCENTS + 1):
            bound = trws.ascend() + reduced.seconds
            if ascent % CHECKED == 0 or not reduced.kept:
                labels = reduced.labels(trws.labels())
                seconds = whole.cost_of(labels)
                if seconds < least:
                    best, least = labels, seconds
                if least - bound <= CLOSE * least or bound - before <= CLOSE * bound:
                    break
                before = bound
                if self.watch.is_late:
                    break
        self.expected = bound
        if least - bound > CLOSE * least:
            starts = [best, *sorted(self.learned.labels, key=whole.cost_of)[:1]]
            best = min((improve_whole(reduced, start) for start in starts), key=whole.cost_of)
        return best

    def _learn(self, model: Model, labels: Sequence[int]) -> bool:
        """Prices exactly what labels stand for; returns whether that makes a difference."""
        bodies = {(c, labels[index]) for index, c in enumerate(model.candidates)}
        changed = [candidates.learn(label) for candidates, label in bodies]
        return self.tables.transfers.learn(model.transfers_of(labels)) or any(changed)

    def _keep(self, model: Model | Proof, labels: Sequence[int]) -> None:
        """Prices the plan that labels stand for, and keeps it if it is the best so far."""
        choices = model.choices(labels)
        forms = tied(self.graph, model.forms(labels))
        seconds = self.learned.price.total(choices, forms)
        if not self.memory_price.is_free:
            seconds += self.tables.resident.total_seconds(choices, forms, self.memory_price)
        if self.best is None or seconds < self.best.seconds:
            solution = solution_of(self.graph, choices, forms)
            self.best = Found(solution, seconds, 0.0)

    def _improve(self, choices: Sequence[Choice], *, itself: bool = False) -> None:
        """Looks for better plans than one whose choices are known, and keeps the best.

        Args:
            choices: Per op.
            itself: Whether to keep that plan too, if none is better.
        """
        model = self._model()
        labels = labels_of(model, choices)
        self._learn(model, labels)
        if itself:
            self._keep(model, labels)
        for _ in range(MAX_ROUNDS):
            model = self._model()
            labels = improve_whole(eliminate(model.network), labels)
            self._keep(model, labels)
            if not self._learn(model, labels) or self.watch.is_late:
                break
        self.learned.labels.append(labels)

    def _settle(self) -> None:
        """Searches once more with what is stored as in the best plan: less is left open then."""
        assert self.best is not None
        for _ in range(MAX_ROUNDS):
            if self._is_close(self.expected, ENOUGH) or self.watch.is_late:
                break
            model = self._model()
            model.keep_stored(self.best.solution.forms)
            labels = self._solve(model.network)
            self._keep(model, labels)
            self.learned.labels.append(labels)
            if not self._learn(model, labels):
                break

    def _is_close(self, bound: float, enough: float) -> bool:
        """Whether the best plan is so close to a bound that a better one isn't worth the time."""
        return self._gap_to(bound) <= self._enough(enough)

    def _enough(self, enough: float) -> float:
        """Returns the relative gap that counts as none, given that of large programs."""
        return CLOSE if self._is_small else enough

    def _gap_to(self, bound: float) -> float:
        """Returns by which part of a bound the best plan differs from it."""
        if self.best is None:
            return math.inf
        gap = abs(self.best.seconds - bound)
        return gap / bound if bound else math.inf if gap else 0.0

    def _tell(self, what: str) -> None:
        seconds = None if self.best is None else self.best.seconds
        self.watch.tell(Progress(what, seconds, self.bound))
