"""Run: one search of a graph, at one price of the bytes that a rank holds.

A model of the graph is solved by elimination and message passing. Reshards are planned only where a
solution has them: where one doesn't take what was expected, the model learns that, and is solved
again. Where that leaves a gap, the best presets are improved as well. How fast a plan can be at
most is proven afterwards, on a network that charges no plan more than it takes (`proving`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from autopar.completion.problem.op_strategies import Choice
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
from autopar.completion.search.incumbents import PROVEN, Incumbent
from autopar.completion.search.learned import CLOSE, ENOUGH, ROOM, Learned
from autopar.completion.search.network.candidates import Around
from autopar.completion.search.plans import FAR
from autopar.completion.search.starts import labels_of
from autopar.completion.search.watch import Progress, TimeIsUp, Watch, is_idle

STARTS = 2
"""How many presets are improved at a time."""


class Run(Proving):
    """One search of a graph; what it learns is known to others."""

    def find(self) -> Found:
        """Returns the best plan, before more is proven than the search needs."""
        self.watch.renew()
        if self.memory_price.is_free:
            divided = sum(node.call.divided_seconds for node in self.graph.nodes)
            self.bound = max(self.bound, divided)
        with suppress(TimeIsUp):
            self._search_at()
        if self.best is None:
            # Not one model was made in time.
            presets, incumbents = self.presets(math.inf), self.learned.incumbents
            assert incumbents is not None
            plan = presets[0].solution if presets else incumbents.fallback()
            self.best = Found(plan, plan.seconds, self.bound)
        self.learned.solutions.append(self.best.solution)
        return self._found()

    def prove(self, above: float) -> Found:
        """Proves a bound, and looks for better plans if it isn't close; returns the best.

        Args:
            above: The proof ends once no plan can take less than that many seconds.
        """
        with suppress(TimeIsUp):
            self._bring_together(above)
        return self._found()

    def rule_out(self, above: float) -> None:
        """Raises the bound before any plan is found.

        Args:
            above: The proof ends once no plan can take less than that many seconds, or if it
                doesn't seem to get there.
        """
        if self.learned.is_affordable:
            with suppress(TimeIsUp):
                self._prove(above, self._enough(PROVEN))
            if not self._is_small:
                self.learned.forget_proof()
                self.tables.forget_least()

    def bound_above(self, above: float) -> float:
        """Returns a bound, before any plan is found, with more patience than `rule_out`."""
        if self.learned.is_affordable:
            self.watch.renew()
            with suppress(TimeIsUp):
                self._prove(above, CLOSE, MORE_PATIENCE if self._is_small else PATIENCE)
        return self.bound

    def near(self, starts: Sequence[Sequence[Choice]]) -> Found:
        """Returns the best plan found from some whose choices are known.

        Of a handful of ops it is looked for elsewhere too, until the bound is near.

        Args:
            starts: Choices per op; those that pins forbid don't count.
        """
        self.watch.renew()
        with suppress(TimeIsUp):
            for choices in starts:
                if self.learned.is_affordable:
                    self._improve(choices, itself=True)
                else:
                    self._descend(choices)
            if len(self.graph.nodes) <= HANDFUL:
                self._look()
                self._prove(math.inf, PROVEN)
        if self.best is None:
            # Nothing was found in time: the first plan itself, with the pins.
            return best_around(self.learned.around(Around(starts[0], ()), Watch()))
        return self._found()

    def presets(self, gap: float) -> Sequence[Incumbent]:
        """Returns the presets that are worth their time at a gap, the fastest first."""
        if self.learned.incumbents is None:
            return ()
        seconds = None if self.best is None else self.best.seconds
        return self.learned.incumbents.within(gap, Progress("", seconds, self.bound))

    def _bring_together(self, above: float) -> None:
        """Proves a bound, and looks for better plans if it isn't close."""
        if not self.learned.is_affordable:
            return
        if not self._is_close(self.bound, PROVEN) and not self._is_for_presets:
            self._prove(above, self._enough(PROVEN))
        if self._found().gap > PROVEN and self.bound <= above:
            self._approach(above)
            if self._found().gap > PROVEN:
                self._start(self._found().gap)
            self.learned.forget_proof()

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

    def _search_at(self) -> None:
        is_free = self.memory_price.is_free
        if self.learned.is_affordable:
            self._look()
        else:
            for earlier in self.learned.solutions[-STARTS:]:
                self._descend(earlier.choices)
        if self.best is None and is_free:
            self._take_preset()
        if self.best is None or (is_free and not self._is_small and self._is_far):
            self._start(math.inf)
        if not is_free and self.learned.is_affordable:
            self._reconsider()
            if self._is_small:
                self._sharpen()
                self._settle()

    def _descend(self, start: Sequence[Choice]) -> None:
        """Improves a plan along one axis after the other."""
        for plan in descend(self.graph.space.axes, start, self._best_around):
            if self.best is None or plan.seconds < self.best.seconds:
                self.best = plan
            self._tell("searching along one axis after the other")

    def _best_around(self, around: Around) -> Found | None:
        """Returns the best plan among those that have something in common, if there is time."""
        known = self.learned.around(around)
        return None if self.watch.is_late or not known.is_affordable else best_around(known)

    def best_around(self) -> Found:
        """Returns the best plan among those that have something in common, that one included."""
        around = self.tables.around
        assert around is not None
        self.watch.spend(BODY_WORK * self.graph.kinds_with_bodies * len(self.graph.space.axes))
        model = self._model()
        labels = labels_of(model, around.choices)
        self._learn(model, labels)
        self._keep(model, labels)
        self.learned.labels.append(labels)
        self._rounds(together=True)
        return self._found()

    def _look(self) -> None:
        """Searches models in which sums share buckets, and if need be one in which none do."""
        self._rounds(together=True)
        expected, is_done = self.expected, self._is_close(self.expected, ENOUGH)
        shares = self._is_small and self.tables.transfers.shares
        if shares and not is_done and not self.watch.is_late:
            # A sum that travels alone takes more than its part of a bucket.
            self._rounds(together=False)
            self.expected = expected

    def _rounds(self, *, together: bool) -> None:
        """Searches the model, and learns of reshards, until that makes no difference."""
        tried: list[list[int]] = []
        seconds: list[float] = []
        for number in range(1, MAX_ROUNDS + 1):
            self._tell(f"searching, round {number}")
            model = self._model(together=together)
            labels = self._solve(model.network)
            has_learned = self._learn(model, labels)
            self._keep(model, labels)
            tried.append(labels)
            if self._is_close(self.expected, ENOUGH) or self.watch.is_late:
                break
            is_first = number == 1
            if (is_first and self.learned.is_affordable and self._start(0.0)) or not has_learned:
                break
            if not is_first and not self._is_thorough and not self._is_close(self.expected, FAR):
                # Plans near presets are sooner better than those of more rounds.
                break
            seconds.append(self._found().seconds)
            if is_idle(seconds, IDLE_ROUNDS, self.learned.precision):
                break
        self.learned.labels += tried

    def _reconsider(self) -> None:
        """Improves the best plan of other prices, if it is better at this one too."""
        assert self.best is not None
        resident, price = self.tables.resident, self.memory_price
        by_seconds = {
            self.learned.price.total(each.choices, each.forms)
            + resident.total_seconds(each.choices, each.forms, price): each
            for each in self.learned.solutions
        }
        if by_seconds and min(by_seconds) < self.best.seconds * (1 - CLOSE):
            self._improve(by_seconds[min(by_seconds)].choices, itself=True)

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
            if is_better and preset.strategy not in self.learned.tried_presets:
                self.learned.tried_presets.add(preset.strategy)
                is_thorough = self._is_thorough or gap <= PROVEN
                improve = self._improve if is_thorough else self._descend
                improve(preset.solution.choices)
        return self.best is not None and self.best.seconds < before * (1 - PROVEN)


def best_around(learned: Learned) -> Found:
    """Returns the best plan among those that have something in common (see `Learned.around`)."""
    return Run(learned).best_around()
