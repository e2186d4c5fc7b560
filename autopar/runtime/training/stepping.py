"""The steps of a training: ranks compare what they are given, run it, and keep what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from autopar.base.arguments import FLAG, expect
from autopar.base.errors import InvalidInputError
from autopar.ir.builds.files import Build
from autopar.runtime.agree.agreement import Offer, Pending
from autopar.runtime.agree.disagreement import LOCAL, METHOD, SHAPES
from autopar.runtime.execute.gate import Gate
from autopar.runtime.execute.ranks import Ranks, Results
from autopar.runtime.execute.updates import Abandoned
from autopar.runtime.ports.ports import check_present, seed_input
from autopar.runtime.training.rates import LearningRates
from autopar.runtime.training.step_plan import Arguments, Given, StepPlan
from autopar.runtime.training.step_plans import StepPlans
from autopar.runtime.training.verdicts import NonFiniteLoss, Verdicts

NO_BATCH = object()
"""Stands for a batch that isn't given."""


@dataclass(frozen=True)
class Asked:
    """What a step is asked for.

    Attributes:
        batch, lr, local: See `Trainer.step`.
        wrong: Why nobody can call it like that; "" if one can.
        number: The number of the step, from 0.
        seed: What the random numbers of all steps depend on.
    """

    batch: Any
    lr: float | Sequence[float] | None
    local: bool
    wrong: str
    number: int
    seed: int


class Steps:
    """Runs the steps of one training. All processes call alike.

    Args:
        ranks: Who runs the ranks of this process.
        gate: What the ranks look at before they overwrite anything.
        build: What the ranks run.
        rates: The learning rates.

    Attributes:
        verdicts: What devices find of steps that they judge.

    Raises:
        InvalidInputError: If what is stored lies elsewhere for batches of other shapes.
    """

    def __init__(self, ranks: Ranks, gate: Gate, build: Build, rates: LearningRates) -> None:
        self.ranks = ranks
        self._gate = gate
        self._rates = rates
        self._first = min(ranks.programs)
        self._plans = StepPlans(ranks, build)
        self._plans.check_stored_alike(ranks.programs[self._first])
        self._plan = self._plans.first
        self._results: Results = {}
        self.verdicts = Verdicts(gate.check_loss)

    def run(self, asked: Asked) -> Tensor:
        """Trains on a batch and returns its loss; see `Trainer.step`.

        Raises:
            InvalidInputError: If the batch doesn't fit the program, here or on another rank, or
                the ranks aren't given the same.
            NonFiniteLoss: If the loss is NaN or infinite.
            RuntimeFailure: If this or another rank fails.
        """
        with self.ranks.reported():
            plan, offer, given = self._prepared(asked)
            pending = self.ranks.agreement.start(offer)
            # Ranks with batches for different programs would wait for one another; and in the
            # first step, one whose batch is refused has nothing to run with meanwhile.
            now = self._plans.several or self.ranks.agreement.alone or not plan.ran
            # A device that judges by itself knows nothing of what others were given.
            now = now or self._gate.later
            refusal = pending.settle() if now else None
        if refusal is not None:
            raise refusal
        if not now or not self._plans.several:
            plan.remember(given.arguments)
        self._results = {}
        results = self._executed(plan, given.arguments, None if now else pending, asked.number)
        if self._gate.later:
            outputs = results[self._first]
            self.verdicts.add(asked.number, plan.program, outputs, plan.empty)
        plan.keep(results)
        plan.write_back(results, given)
        self._plan, self._results = plan, results
        return results[self._first][0]

    def fetched(self) -> dict[str, Tensor]:
        """Returns what else the last step computed, by label; see `Trainer.fetched`.

        Raises:
            InvalidInputError: If there was no step yet, or the last one was refused.
        """
        self.ranks.standing.check()
        if not self._results:
            raise InvalidInputError("nothing is fetched before the first step")
        return self._plan.fetched(self._results)

    def _prepared(self, asked: Asked) -> tuple[StepPlan, Offer, Given]:
        """Returns what is to run, what all ranks must have alike, and what the ranks are given.

        With a batch that doesn't fit, these are the arguments of the step before, if there was
        one: others wait until all ranks know of it.
        """
        plan, local = self._plans.first, asked.local
        try:
            if asked.wrong:
                raise InvalidInputError(asked.wrong)
            check_present(self.ranks.absent)
            expect(FLAG, local=local)
            rates = self._rates.rates(asked.lr)
            plain = self._plain_inputs(rates, asked)
            if local:
                batches = [asked.batch] if len(self.ranks.programs) == 1 else list(asked.batch)
                plan = self._plans.for_parts(batches)
                given = plan.local_given(batches, plain)
            else:
                plan = self._plans.for_batch(asked.batch)
                given = plan.given(asked.batch, plain)
        except InvalidInputError as error:
            return plan, Offer(error), Given(plan.again())
        values = {METHOD: "step", LOCAL: str(local), SHAPES: str(plan)}
        values.update(self._values(rates, asked))
        return plan, Offer(None, values, given.brought, given.peers), given

    def _values(self, rates: Mapping[str, float], asked: Asked) -> dict[str, str]:
        """Returns what must be the same on all ranks, besides the batch."""
        found = {label: str(rate) for label, rate in rates.items()}
        if seed_input(self._plans.first.program) is not None:
            found["seed"] = str(asked.seed)
        return {**found, "steps": str(asked.number), "check_loss": self._gate.said}

    def _plain_inputs(self, rates: Mapping[str, float], asked: Asked) -> dict[str, Any]:
        """Returns what a program takes besides stored tensors and the batch."""
        inputs: dict[str, Any] = dict(rates)
        if (drawing := seed_input(self._plans.first.program)) is not None:
            inputs[drawing.label] = seed_of_step(asked.seed, asked.number)
        return inputs

    def _executed(
        self, plan: StepPlan, arguments: Arguments, pending: Pending | None, number: int
    ) -> Results:
        """Runs a step up to where new content is kept.

        Raises:
            InvalidInputError: If the ranks aren't given the same.
            NonFiniteLoss: If the loss isn't finite.
        """
        self._gate.pending = pending
        try:
            return plan.ranks.execute(arguments, number=number)
        except Abandoned as stopped:
            reason = stopped.args[0]
        if isinstance(reason, InvalidInputError):
            raise reason
        if isinstance(reason, Exception):
            with self.ranks.reported():
                raise reason
        raise NonFiniteLoss(number, reason, plan.empty)


def wrong_call(batch: Any, surplus: Sequence[object], unknown: Mapping[str, object]) -> str:
    """Returns why `step` can't be called with these arguments; "" if it can."""
    takes = "step() takes a batch, lr= and local="
    if unknown:
        return f"{takes}, and no {', '.join(f'{name}=' for name in unknown)}"
    if surplus:
        return f"{takes}, and {len(surplus)} more are given"
    return f"{takes}; no batch is given" if batch is NO_BATCH else ""


def seed_of_step(seed: int, step: int) -> int:
    """Returns the seed of a step's random numbers: another one for each step and user's seed.

    Args:
        seed: The user's seed; its 31 low bits count.
        step: The number of the step, from 0.
    """
    return ((seed & 0x7FFFFFFF) << 32) + step
