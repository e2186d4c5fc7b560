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
    CHECKED,
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
from autopar.completion.search.network.network import Costs, Network
from autopar.completion.search.plans import Plans
from autopar.completion.search.solvers.eliminate import eliminate
from autopar.completion.search.solvers.narrow import narrow
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
        before = -math.inf
        self.learned.costs = Costs(self.watch)
        proof = self._proof()
        rounds, least = (TURN_ROUNDS, TURN_ASCENTS) if in_turn else (MAX_PROOFS, ASCENTS)
        ascents, gaps = least, list[float]()
        network = self._network(proof)
        for number in range(1, rounds + 1):
            self._tell(f"proving, round {number}")
            self.watch.spend(ROUND_WORK * len(self.graph.nodes))
            labels = self._ascended(network, ascents)
            if self.bound > above or self.watch.is_late:
                break
            if not in_turn and self.best is not None and self._is_for_presets:
                break
            if self.best is None and above - self.bound > patience * (self.bound - before):
                break
            self._promising = proof.choices(labels)
            gaps.append(self._gap_to(self.bound))
            if gaps[-1] <= enough or is_idle(gaps, IDLE_PROOFS, IDLE_PART):
                break
            has_learned = self._learn_least(proof, labels, in_turn=in_turn)
            network = self._network(proof)
            if self._is_better(network, labels):
                self._keep(proof, labels)
                if self._gap_to(self.bound) <= enough:
                    break
            rise, before = self.bound - before, self.bound
            # What few ascents don't raise, more of them may.
            is_tried = has_learned or ascents >= CHECKED
            if not in_turn and is_tried and self._is_settled(rise, rounds - number, has_learned):
                break
            # Where nothing is left to learn, the network stays, and only messages help.
            ascents = least if has_learned else min(2 * ascents, MAX_ASCENTS)

    def _ascended(self, network: Network, ascents: int) -> list[int]:
        """Raises the bound by sending messages; returns labels that cost little.

        Where a plan is known, ways that no faster one has are left out, and the rest is solved.

        Args:
            network: The network, which is used up.
            ascents: How often they are sent.
        """
        reduced = eliminate(network)
        trws = Trws(reduced.core, self.learned.messages)
        for _ in range(ascents):
            self.bound = max(self.bound, trws.ascend() + reduced.seconds)
        self.learned.messages = trws.messages
        exact = None
        if self.best is not None:
            exact = narrow(trws, self.best.seconds - reduced.seconds)
        if exact is None:
            return reduced.labels(trws.labels())
        self.bound = max(self.bound, exact[0] + reduced.seconds)
        return reduced.labels(exact[1])

    def _is_better(self, network: Network, labels: Sequence[int]) -> bool:
        """Whether what labels stand for may be faster than the best plan.

        Most are no plans worth having. The network charges none more than it takes, which shows
        that before they are priced.
        """
        return (
            self._is_small and self.best is not None and network.cost_of(labels) < self.best.seconds
        )

    def _network(self, proof: Proof) -> Network:
        """Returns the network of the proof with what is known by now."""
        return proof.network(self.tables.resident, self.memory_price)

    def _learn_least(self, proof: Proof, labels: Sequence[int], *, in_turn: bool) -> bool:
        """Prices what labels stand for; returns whether something takes more than was known."""
        if in_turn:
            proof.follow(labels)
        moves = list(proof.transfers_of(labels))
        has_learned = proof.learn(labels)
        has_learned = self.tables.least.look(moves) or has_learned
        if not has_learned and self.best is not None:
            has_learned = self.tables.least.learn(moves)
        return has_learned

    def _is_settled(self, rise: float, rounds: int, has_learned: bool) -> bool:
        """Whether as many more rounds that raise the bound like the last one don't help."""
        if self._is_small or self.best is None:
            return not has_learned and rise <= CLOSE * self.bound
        return (self.bound + rise * rounds) * (1 + PROVEN) < self.best.seconds

    def _sharpen(self) -> None:
        """Looks for better plans where the proof sees some, which knows least of what they take."""
        proof = self._proof()
        for _ in range(FEW_PROOFS):
            reduced = eliminate(self._network(proof))
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
