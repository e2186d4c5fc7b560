"""Proving: how fast a plan can be at most, on a network that charges none more than it takes.

What the labels of the network stand for is planned, whereupon they cost more, until the bound is
close (`proof`, `trws`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.completion.problem.op_strategies import Choice
from autopar.completion.search.bounds.proof import Proof
from autopar.completion.search.effort import (
    ASCENTS,
    FEW_PROOFS,
    IDLE_PART,
    IDLE_PROOFS,
    MAX_ASCENTS,
    MAX_PROOFS,
    PATIENCE,
    ROUND_WORK,
    TURN_ASCENTS,
    TURN_ROUNDS,
)
from autopar.completion.search.incumbents import PROVEN
from autopar.completion.search.learned import CLOSE
from autopar.completion.search.network.network import Costs
from autopar.completion.search.plans import Plans
from autopar.completion.search.solvers.eliminate import eliminate
from autopar.completion.search.solvers.trws import Trws
from autopar.completion.search.watch import is_idle


class Proving(Plans):
    """A run that also proves a bound of all plans."""

    _promising: Sequence[Choice] = ()
    """The choices that take least by the proof, which may be those of a faster plan."""

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
        learned, before = self.learned, -math.inf
        learned.costs = Costs(self.watch)
        proof = self._proof()
        rounds, least = (TURN_ROUNDS, TURN_ASCENTS) if in_turn else (MAX_PROOFS, ASCENTS)
        ascents, gaps = least, list[float]()
        for number in range(1, rounds + 1):
            self._tell(f"proving, round {number}")
            self.watch.spend(ROUND_WORK * len(self.graph.nodes))
            reduced = eliminate(proof.network(self.tables.resident, self.memory_price))
            trws = Trws(reduced.core, learned.messages)
            for _ in range(ascents):
                self.bound = max(self.bound, trws.ascend() + reduced.seconds)
            learned.messages = trws.messages
            if self.bound > above or self.watch.is_late:
                break
            if not in_turn and self.best is not None and self._is_for_presets:
                break
            if self.best is None and above - self.bound > patience * (self.bound - before):
                break
            labels = reduced.labels(trws.labels())
            self._promising = proof.choices(labels)
            if self._is_small and self.best is not None:
                self._keep(proof, labels)
            gaps.append(self._gap_to(self.bound))
            if gaps[-1] <= enough or is_idle(gaps, IDLE_PROOFS, IDLE_PART):
                break
            if in_turn:
                proof.follow(labels)
            moves = list(proof.transfers_of(labels))
            has_learned = proof.learn(labels)
            has_learned = self.tables.least.look(moves) or has_learned
            if not has_learned and self.best is not None:
                has_learned = self.tables.least.learn(moves)
            rise, before = self.bound - before, self.bound
            if not in_turn and self._is_settled(rise, rounds - number, has_learned):
                break
            # Where nothing is left to learn, the network stays, and only messages help.
            ascents = least if has_learned else min(2 * ascents, MAX_ASCENTS)

    def _is_settled(self, rise: float, rounds: int, has_learned: bool) -> bool:
        """Whether as many more rounds that raise the bound like the last one don't help."""
        if self._is_small or self.best is None:
            return not has_learned and rise <= CLOSE * self.bound
        return (self.bound + rise * rounds) * (1 + PROVEN) < self.best.seconds

    def _sharpen(self) -> None:
        """Looks for better plans where the proof sees some, which knows least of what they take."""
        proof = self._proof()
        for _ in range(FEW_PROOFS):
            reduced = eliminate(proof.network(self.tables.resident, self.memory_price))
            trws = Trws(reduced.core, self.learned.messages)
            for _ in range(ASCENTS):
                trws.ascend()
            self.learned.messages = trws.messages
            labels = reduced.labels(trws.labels())
            self._improve(proof.choices(labels), itself=True)
            if not self.tables.least.look(proof.transfers_of(labels)):
                break

    def _proof(self) -> Proof:
        """Returns the network of the proof, as far as it is known."""
        if self.learned.proof is None:
            self.learned.proof = Proof(self.graph, self.tables.candidates, self.tables.least)
        return self.learned.proof
