"""Search: the plan with the least predicted seconds, among all ways to compute every op.

What the user pinned stays; everything else is free. A model of the graph is solved by elimination
and message passing. Reshards are planned only where a solution has them: where one doesn't take
what was expected, the model learns that, and is solved again. Where that leaves a gap, the best
presets are improved as well. How fast a plan can be at most is proven afterwards, on a network that
charges no plan more than it takes (`proving`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field

from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.price import Price
from autopar.completion.propagate.solve import Solution
from autopar.completion.search.bounds.proving import Proving
from autopar.completion.search.descent import descend
from autopar.completion.search.effort import (
    BODY_WORK,
    HANDFUL,
    HELPS,
    IDLE_ROUNDS,
    MAX_ROUNDS,
    MAX_TURNS,
    MORE_PATIENCE,
    PATIENCE,
)
from autopar.completion.search.found import Found
from autopar.completion.search.incumbents import PROVEN, Incumbent, Incumbents
from autopar.completion.search.network.candidates import Around
from autopar.completion.search.network.memory_price import FREE, HeldPrice
from autopar.completion.search.network.network import Costs
from autopar.completion.search.network.tables import Tables
from autopar.completion.search.plans import CLOSE, ENOUGH, FAR, ROOM
from autopar.completion.search.starts import labels_of
from autopar.completion.search.watch import Progress, TimeIsUp, Watch, is_idle

STARTS = 2
"""How many presets are improved at a time."""


def search(graph: Graph, *, watch: Watch | None = None) -> Found:
    """Returns the best plan for a graph, with a bound.

    Args:
        graph: With the user's pins.
        watch: Says when the best plan so far is to be returned, and is told how far the search is.
    """
    return Search(graph, watch or Watch()).run()


@dataclass
class Search(Proving):
    """A search that keeps what it learns of a graph for other prices of the bytes of a rank.

    Attributes:
        incumbents: Presets, to start from the best of them too; None for a search without.
    """

    incumbents: Incumbents | None = None
    _earlier: list[Solution] = field(init=False, default_factory=list)
    _started: set[str] = field(init=False, default_factory=set)
    _first: Found | None = field(init=False, default=None)
    _proven: Found | None = field(init=False, default=None)

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

    @property
    def is_cut(self) -> bool:
        """Whether with more work a better plan may be found, or a better bound."""
        return self.watch.is_spent or not self.is_affordable

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
