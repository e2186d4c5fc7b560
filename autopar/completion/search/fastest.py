"""Search: the plan with the least predicted seconds, among all ways to compute every op.

What the user pinned stays; everything else is free. A model of the graph is solved by elimination
and message passing. Reshards are planned only where a solution has them: where one doesn't take
what was expected, the model learns that, and is solved again. Where that leaves a gap, the best
presets are improved as well. How fast a plan can be at most is proven afterwards, on a network that
charges no plan more than it takes (`proof`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property

from autopar.completion.call import Choice
from autopar.completion.graph import Graph
from autopar.completion.price import Price
from autopar.completion.search.candidates import Around
from autopar.completion.search.descent import descend
from autopar.completion.search.dual import Dual
from autopar.completion.search.effort import (
    ASCENTS,
    BODY_WORK,
    CHECKED,
    FEW_PROOFS,
    HANDFUL,
    HELPS,
    IDLE_PART,
    IDLE_PROOFS,
    IDLE_ROUNDS,
    MAX_ASCENTS,
    MAX_PROOFS,
    MAX_ROUNDS,
    MAX_TURNS,
    MORE_PATIENCE,
    PATIENCE,
    ROUND_WORK,
    TURN_ASCENTS,
    TURN_ROUNDS,
)
from autopar.completion.search.eliminate import eliminate
from autopar.completion.search.found import Found, solution_of
from autopar.completion.search.held import FREE, HeldPrice
from autopar.completion.search.improve import improve_whole
from autopar.completion.search.incumbents import PROVEN, Incumbent, Incumbents
from autopar.completion.search.model import Model, build_model
from autopar.completion.search.network import Array, Costs, Network
from autopar.completion.search.proof import Proof
from autopar.completion.search.starts import labels_of
from autopar.completion.search.tables import Tables
from autopar.completion.search.watch import Progress, TimeIsUp, Watch, is_idle
from autopar.completion.solve import Solution

CLOSE = 1e-6
"""Relative gap at which a plan counts as the best."""

ENOUGH, ROOM = 1e-3, 5e-3
"""The same for large programs, which take longer to search and to start again."""

FAR = 0.03
"""At such a gap to what a large model promises, it isn't searched on."""

STARTS = 2
"""How many presets are improved at a time."""

FEW_OPS = 500
"""Up to so many ops a program isn't large."""


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
        watch: Says when the best plan so far is to be returned, and is told how far the search is.
        incumbents: Presets, to start from the best of them too; None for a search without.
        known: Labels of earlier runs and of starts: what was good at one price is a start at
            another.
    """

    graph: Graph
    watch: Watch
    incumbents: Incumbents | None = None
    held_price: HeldPrice = field(init=False, default=FREE)
    tables: Tables = field(init=False)
    price: Price = field(init=False)
    known: list[list[int]] = field(init=False, default_factory=list)
    _earlier: list[Solution] = field(init=False, default_factory=list)
    _started: set[str] = field(init=False, default_factory=set)
    best: Found | None = field(init=False, default=None)
    expected: float = field(init=False, default=0.0)
    """About the seconds of the fastest plan, by the model."""
    bound: float = field(init=False, default=0.0)
    _first: Found | None = field(init=False, default=None)
    _proven: Found | None = field(init=False, default=None)
    _proof: Proof | None = field(init=False, default=None)
    _messages: Array | None = field(init=False, default=None)
    _costs: Costs = field(init=False)
    _promising: Sequence[Choice] = field(init=False, default=())
    """The choices that take least by the proof, which may be those of a faster plan."""

    def __post_init__(self) -> None:
        self.price = Price(self.graph)
        # Without presets there is nothing to fall back on before the first model.
        watch = self.watch if self.incumbents is not None else Watch()
        self.tables, self._costs = Tables(self.graph, watch), Costs(watch)

    def run(self, price: HeldPrice = FREE, above: float = math.inf) -> Found:
        """Returns the best plan, with a bound. Without a price it is searched only once.

        Args:
            price: Of the bytes that a rank holds; it is part of what is minimized. With one, no
                bound is proven.
            above: The proof ends once no plan can take less than that many seconds.
        """
        if not price.is_free:
            return self._search(price)
        if self._proven is None:
            self.best, self.held_price = self.find(), FREE
            with suppress(TimeIsUp):
                self._bring_together(above)
            self._proven = self._found()
        return self._proven

    def _bring_together(self, above: float) -> None:
        """Proves a bound, and looks for better plans if it isn't close."""
        if not self.is_affordable:
            return
        if not self._is_close(self.bound, PROVEN) and not self._is_for_presets:
            self._prove(above, self._enough(PROVEN))
        if self._found().gap > PROVEN and self.bound <= above:
            self._approach(above)
            if self._found().gap > PROVEN:
                self._start(self._found().gap)
            self._proof = self._messages = None

    def _approach(self, above: float) -> None:
        """Improves what the proof has come to, and goes on with the proof, while that helps."""
        for _ in range(MAX_TURNS):
            before = self._found().gap
            if before <= PROVEN or not self._promising or self.watch.is_late:
                break
            self._improve(self._promising)
            self._prove(above, self._enough(PROVEN), in_turn=True)
            if self.bound > above or self._found().gap > HELPS * before:
                break

    def rule_out(self, above: float) -> float:
        """Returns a bound of plans without a price, before any of them is found.

        Args:
            above: The proof ends once no plan can take less than that many seconds, or if it
                doesn't seem to get there.
        """
        if self._first is None and self._proven is None and self.is_affordable:
            self.best, self.held_price = None, FREE
            with suppress(TimeIsUp):
                self._prove(above, self._enough(PROVEN))
            if not self.is_small:
                self._proof, self._messages = None, None
                self.tables.forget_least()
        return self.bound

    def bound_at(self, price: HeldPrice, above: float) -> float:
        """Returns a bound of the seconds of plans, with the price of the bytes that they hold.

        Args:
            price: Of a byte.
            above: The proof ends once no plan can take less, or if it doesn't seem to get there.
        """
        self.best, self.bound, self.held_price = None, 0.0, price
        if not self.is_affordable:
            return self.bound
        self.watch.renew()
        with suppress(TimeIsUp):
            self._prove(above, CLOSE, MORE_PATIENCE if self.is_small else PATIENCE)
        return self.bound

    @property
    def precision(self) -> float:
        """The relative gap at which a plan counts as the best before anything is proven."""
        return CLOSE if self.is_small else ENOUGH

    def _found(self) -> Found:
        assert self.best is not None
        return Found(self.best.solution, self.best.seconds, self.bound)

    def find(self) -> Found:
        """Returns the best plan without a price before anything is proven; searched only once."""
        if self._first is None:
            self._first = self._search(FREE)
        return self._first

    def _search(self, price: HeldPrice) -> Found:
        self.held_price, self.best = price, None
        self.expected = 0.0
        self.watch.renew()
        divided = sum(node.call.divided_seconds for node in self.graph.nodes)
        self.bound = max(self.bound, divided) if price.is_free else 0.0
        with suppress(TimeIsUp):
            self._search_at(price)
        if self.best is None:
            # Not one model was made in time.
            preset = self.presets(math.inf)[0]
            self.best = Found(preset.solution, preset.seconds, self.bound)
        self._earlier.append(self.best.solution)
        return self._found()

    def _search_at(self, price: HeldPrice) -> None:
        if self.is_affordable:
            self._look()
        else:
            for earlier in self._earlier[-STARTS:]:
                self._descend(earlier.choices)
        if self.best is None and price.is_free:
            self._take_preset()
        if self.best is None or (price.is_free and not self.is_small and self._is_far):
            self._start(math.inf)
        if not price.is_free and self.is_affordable:
            self._reconsider()
            if self.is_small:
                self._sharpen()
                self._settle()

    @cached_property
    def is_affordable(self) -> bool:
        """Whether all ways to compute every op can be compared with the work that there is."""
        return self.watch.is_worth(self.tables.likely_work)

    @property
    def is_cut(self) -> bool:
        """Whether with more work a better plan may be found, or a better bound."""
        return self.watch.is_spent or not self.is_affordable

    @property
    def _is_thorough(self) -> bool:
        """Whether plans are improved with all ways to compute every op at hand."""
        return self.is_small and self.is_affordable

    @property
    def _is_far(self) -> bool:
        """Whether the best plan takes much longer than the model promises, or no bound is near."""
        return not self._is_close(max(self.bound, self.expected), FAR)

    @property
    def _is_for_presets(self) -> bool:
        """Whether the rest of the work is for presets, which may be faster than what was found."""
        return self.watch.is_half_spent and self._is_far

    def _descend(self, start: Sequence[Choice]) -> None:
        """Improves a plan along one axis after the other."""
        for found in descend(self, start):
            if self.best is None or found.seconds < self.best.seconds:
                self.best = found
            self._tell("searching along one axis after the other")

    def around(self, around: Around, watch: Watch | None = None) -> Search:
        """Returns a search among the plans that have something in common.

        Args:
            around: What they have in common.
            watch: Says when it ends; by default as this one.
        """
        other = self._anew(watch or self.watch)
        other.tables = Tables(self.graph, other.watch, around)
        return other

    def best_around(self) -> Found:
        """Returns the best plan among those that have something in common, that one included."""
        around = self.tables.around
        assert around is not None
        self.watch.spend(BODY_WORK * self.graph.kinds_with_bodies * len(self.graph.space.axes))
        model = self._model()
        labels = labels_of(model, around.choices)
        self._learn(model, labels)
        self._keep(model, labels)
        self.known.append(labels)
        self._rounds(together=True)
        return self._found()

    def _look(self) -> None:
        """Searches models in which sums share buckets, and if need be one in which none do."""
        self._rounds(together=True)
        expected, is_done = self.expected, self._is_close(self.expected, ENOUGH)
        shares = self.is_small and self.tables.transfers.shares
        if shares and not is_done and not self.watch.is_late:
            # A sum that travels alone takes more than its part of a bucket.
            self._rounds(together=False)
            self.expected = expected

    def _rounds(self, *, together: bool) -> None:
        """Searches the model, and learns of reshards, until that makes no difference."""
        tried: list[list[int]] = []
        found: list[float] = []
        for number in range(1, MAX_ROUNDS + 1):
            self._tell(f"searching, round {number}")
            model = self._model(together=together)
            labels = self._solve(model.network)
            learned = self._learn(model, labels)
            self._keep(model, labels)
            tried.append(labels)
            if self._is_close(self.expected, ENOUGH) or self.watch.is_late:
                break
            is_first = number == 1
            if (is_first and self.is_affordable and self._start(0.0)) or not learned:
                break
            if not is_first and not self._is_thorough and not self._is_close(self.expected, FAR):
                # Plans near presets are sooner better than those of more rounds.
                break
            found.append(self._found().seconds)
            if is_idle(found, IDLE_ROUNDS, self.precision):
                break
        self.known += tried

    def _reconsider(self) -> None:
        """Improves the best plan of other prices, if it is better at this one too."""
        assert self.best is not None
        held, price = self.tables.held, self.held_price
        found = {
            self.price.total(each.choices, each.forms)
            + held.seconds(each.choices, each.forms, price): each
            for each in self._earlier
        }
        if found and min(found) < self.best.seconds * (1 - CLOSE):
            self._improve(found[min(found)].choices, itself=True)

    def _sharpen(self) -> None:
        """Looks for better plans where the proof sees some, which knows least of what they take."""
        if self._proof is None:
            self._proof = Proof(self.graph, self.tables.candidates, self.tables.least)
        for _ in range(FEW_PROOFS):
            reduced = eliminate(self._proof.network(self.tables.held, self.held_price))
            dual = Dual(reduced.core, self._messages)
            for _ in range(ASCENTS):
                dual.ascend()
            self._messages = dual.messages
            labels = reduced.labels(dual.labels())
            self._improve(self._proof.choices(labels), itself=True)
            if not self.tables.least.look(self._proof.transfers_of(labels)):
                break

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
            self.known.append(labels)
            if not self._learn(model, labels):
                break

    def varied(self, graph: Graph) -> Search:
        """Returns a search of the same ops with other pins, which shares what is known of costs.

        Args:
            graph: What `repinned` returned for the graph of this search.
        """
        other = self._anew(self.watch)
        other.graph = graph
        is_known = self.is_affordable
        other.tables = self.tables.varied(graph) if is_known else Tables(graph, self.watch)
        return other

    def _anew(self, watch: Watch) -> Search:
        """Returns a search of which nothing is known but what ops and reshards take."""
        other = copy(self)
        vars(other).pop("is_affordable", None)
        other.watch = watch
        other.incumbents, other.known, other.best, other._earlier = None, [], None, []
        other._first = other._proven = other._proof = other._messages = None
        other.bound = other.expected = 0.0
        other._costs = Costs(watch)
        return other

    def near(self, starts: Sequence[Sequence[Choice]]) -> Found:
        """Returns the best plan found from some whose choices are known.

        Of a handful of ops it is looked for elsewhere too, until the bound is near.

        Args:
            starts: Choices per op; those that pins forbid don't count.
        """
        self.watch.renew()
        with suppress(TimeIsUp):
            for choices in starts:
                if self.is_affordable:
                    self._improve(choices, itself=True)
                else:
                    self._descend(choices)
            if len(self.graph.nodes) <= HANDFUL:
                self._look()
                self._prove(math.inf, PROVEN)
        if self.best is None:
            # Nothing was found in time: the first plan itself, with the pins.
            return self.around(Around(starts[0], ()), Watch()).best_around()
        return self._found()

    def presets(self, gap: float) -> Sequence[Incumbent]:
        """Returns the presets that are worth their time at a gap, the fastest first."""
        if self.incumbents is None:
            return ()
        seconds = None if self.best is None else self.best.seconds
        return self.incumbents.within(gap, Progress("", seconds, self.bound))

    def _take_preset(self) -> None:
        """Takes the best of the usual presets if hardly any plan is faster."""
        for best in self.presets(0.0)[:1]:
            if best.seconds * (1 - ENOUGH) <= self.bound:
                self.best = Found(best.solution, best.seconds, self.bound)

    def _start(self, gap: float) -> bool:
        """Improves the best presets; returns whether that leads to much faster plans.

        Not where the model, as far as it is known, has none that are, and no preset is one.
        """
        before = math.inf if self.best is None else self.best.seconds
        is_close = self._is_close(self.expected, ROOM)
        if is_close and gap <= PROVEN:
            return False
        for preset in self.presets(gap)[:STARTS]:
            is_better = not is_close or preset.seconds < before * (1 - CLOSE)
            if is_better and preset.strategy not in self._started:
                self._started.add(preset.strategy)
                is_thorough = self._is_thorough or gap <= PROVEN
                improve = self._improve if is_thorough else self._descend
                improve(preset.solution.choices)
        return self.best is not None and self.best.seconds < before * (1 - PROVEN)

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
        self.known.append(labels)

    def _model(self, *, together: bool = True) -> Model:
        self.watch.spend(ROUND_WORK * len(self.graph.nodes))
        self._costs = self._costs.kept()
        return build_model(
            self.graph,
            self.tables.candidates,
            self.tables.transfers,
            self.tables.held,
            self.held_price,
            together=together,
            costs=self._costs,
        )

    def _prove(
        self, above: float, enough: float, patience: float = PATIENCE, *, in_turn: bool = False
    ) -> None:
        """Raises the bound of every plan towards the best one, or above what matters.

        What labels stand for is planned, whereupon they cost more, until the bound is close.

        Args:
            above: A bound that ends it.
            enough: So does this relative gap.
            in_turn: Whether to go on for a few rounds, whatever they promise, in which pairs of
                readers are weighed anew.
        """
        self._costs = Costs(self.watch)
        if self._proof is None:
            self._proof = Proof(self.graph, self.tables.candidates, self.tables.least)
        proof, before = self._proof, -math.inf
        rounds, least = (TURN_ROUNDS, TURN_ASCENTS) if in_turn else (MAX_PROOFS, ASCENTS)
        ascents, gaps = least, list[float]()
        for number in range(1, rounds + 1):
            self._tell(f"proving, round {number}")
            self.watch.spend(ROUND_WORK * len(self.graph.nodes))
            reduced = eliminate(proof.network(self.tables.held, self.held_price))
            dual = Dual(reduced.core, self._messages)
            for _ in range(ascents):
                self.bound = max(self.bound, dual.ascend() + reduced.seconds)
            self._messages = dual.messages
            if self.bound > above or self.watch.is_late:
                break
            if not in_turn and self.best is not None and self._is_for_presets:
                break
            if self.best is None and above - self.bound > patience * (self.bound - before):
                break
            labels = reduced.labels(dual.labels())
            self._promising = proof.choices(labels)
            if self.is_small and self.best is not None:
                self._keep(proof, labels)
            gaps.append(self._gap_to(self.bound))
            if gaps[-1] <= enough or is_idle(gaps, IDLE_PROOFS, IDLE_PART):
                break
            if in_turn:
                proof.follow(labels)
            moves = list(proof.transfers_of(labels))
            learned = proof.learn(labels)
            learned = self.tables.least.look(moves) or learned
            if not learned and self.best is not None:
                learned = self.tables.least.learn(moves)
            rise, before = self.bound - before, self.bound
            if not in_turn and self._is_settled(rise, rounds - number, learned):
                break
            # Where nothing is left to learn, the network stays, and only messages help.
            ascents = least if learned else min(2 * ascents, MAX_ASCENTS)

    def _is_settled(self, rise: float, rounds: int, learned: bool) -> bool:
        """Whether as many more rounds that raise the bound like the last one don't help."""
        if self.is_small or self.best is None:
            return not learned and rise <= CLOSE * self.bound
        return (self.bound + rise * rounds) * (1 + PROVEN) < self.best.seconds

    @property
    def is_small(self) -> bool:
        """Whether the program is so small that the search goes on until a plan is the best."""
        return len(self.graph.nodes) <= FEW_OPS

    def _is_close(self, bound: float, enough: float) -> bool:
        """Whether the best plan is so close to a bound that a better one isn't worth the time."""
        return self._gap_to(bound) <= self._enough(enough)

    def _enough(self, enough: float) -> float:
        """Returns the relative gap that counts as none, given that of large programs."""
        return CLOSE if self.is_small else enough

    def _gap_to(self, bound: float) -> float:
        """Returns by which part of a bound the best plan differs from it."""
        if self.best is None:
            return math.inf
        gap = abs(self.best.seconds - bound)
        return gap / bound if bound else math.inf if gap else 0.0

    def _tell(self, what: str) -> None:
        seconds = None if self.best is None else self.best.seconds
        self.watch.tell(Progress(what, seconds, self.bound))

    def _solve(self, network: Network) -> list[int]:
        """Returns the best labels found of a model, and raises what is expected."""
        whole = network.copy()
        reduced = eliminate(network)
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
        self.expected = bound
        if least - bound > CLOSE * least:
            starts = [best, *sorted(self.known, key=whole.seconds)[:1]]
            best = min((improve_whole(reduced, start) for start in starts), key=whole.seconds)
        return best

    def _learn(self, model: Model, labels: Sequence[int]) -> bool:
        """Prices exactly what labels stand for; returns whether that makes a difference."""
        bodies = {(c, labels[at]) for at, c in enumerate(model.candidates)}
        changed = [candidates.learn(label) for candidates, label in bodies]
        return self.tables.transfers.learn(model.transfers_of(labels)) or any(changed)

    def _keep(self, model: Model | Proof, labels: Sequence[int]) -> None:
        """Prices the plan that labels stand for, and keeps it if it is the best so far."""
        choices = model.choices(labels)
        forms = model.forms(labels)
        seconds = self.price.total(choices, forms)
        if not self.held_price.is_free:
            seconds += self.tables.held.seconds(choices, forms, self.held_price)
        if self.best is None or seconds < self.best.seconds:
            solution = solution_of(self.graph, choices, forms)
            self.best = Found(solution, seconds, 0.0)
