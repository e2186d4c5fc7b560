"""Within memory: how values are split and what is computed again are decided together.

The fastest plan may keep so much that computing it again costs more than a plan that keeps less. So
several plans are made, each with another price of the bytes that a rank holds (`walk`);
recomputation makes each fit; and the fastest of the outcomes is taken.

The plans don't depend on the limit, which only chooses among them and among the ways to compute
again, and leaves out those that are known to take longer before they are made. So more memory never
leads to a slower program, and less memory never to a higher peak. Presets are among them: the usual
ones, as many as are worth their time, and those that keep least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from autopar.base.errors import AnnotationError
from autopar.base.units import counted, human_bytes, human_seconds, human_slowdown
from autopar.completion.complete import Searched, propagated
from autopar.completion.plan import Plan
from autopar.completion.search.bounds.lagrangian import least_seconds_within
from autopar.completion.search.forecast import Forecast
from autopar.completion.search.incumbents import leanest, strategies
from autopar.ir.activations import is_asked
from autopar.ir.memory.transfers import EITHER
from autopar.ir.program import Program
from autopar.partition.recompute import DoesNotFit, Learned
from autopar.planning.fit import Fitter
from autopar.planning.lowering import Lowered
from autopar.planning.walk import LoweredPlan, Step, Walk, lowered_plan

PRESET_OPS = 2_000
"""Ops that the usual presets complete in sum."""

MOST_PRESETS = 16
"""Usual presets that are tried at most."""

FAR = 2
"""From so many times as long on, both times are said in the place of how they compare."""


@dataclass(frozen=True)
class Outcome:
    """A plan that fits into memory.

    Attributes:
        plan: The plan, lowered.
        added_seconds: Serialized seconds that recomputation adds.
    """

    plan: LoweredPlan
    added_seconds: float

    @property
    def seconds(self) -> float:
        """Serialized seconds of what is run."""
        return self.plan.seconds + self.added_seconds


def _slower(seconds: float, base: float) -> str:
    """Returns how a plan compares with the fastest without a limit: seconds where it is far off."""
    if seconds < FAR * base:
        return f"{human_slowdown(seconds / base)} the fastest without a limit"
    return f"{human_seconds(seconds)}, where it is {human_seconds(base)} without a limit"


class Within:
    """The plans of a problem for any limit of memory.

    Args:
        searched: Finds plans of the problem.
        lower: The passes from a completed program to that of a rank, before recomputation.
        offload: The labels of what waits in the host's memory; None where a limit decides.
        update: Who updates that, the host or the device.
    """

    def __init__(
        self,
        searched: Searched,
        lower: Callable[[Program], Lowered],
        offload: tuple[str, ...] | None = None,
        update: str = EITHER,
    ) -> None:
        self.searched, self.problem = searched, searched.problem
        self.lower, self.offload, self.update = lower, offload, update
        self.cluster = self.problem.cluster
        self._fitters: dict[int, Fitter] = {}
        self._learned = Learned()
        self._plans: list[LoweredPlan] = []
        count = min(MOST_PRESETS, PRESET_OPS // max(1, len(self.problem.program.main.ops)))
        usual = islice(strategies(self.problem.mesh), count)
        self._strategies = dict.fromkeys((*usual, *leanest(self.problem.mesh)))

    def plan(self, memory_bytes: int) -> Plan:
        """Returns the plan that is the fastest once it fits.

        Args:
            memory_bytes: What a rank may hold at once.

        Raises:
            DoesNotFit: If no plan fits; it says by how much the smallest one misses.
        """
        best = self.fastest(memory_bytes)
        limit = human_bytes(memory_bytes)
        if self.base.peak_bytes <= memory_bytes:
            return best.plan.plan.with_remark("memory", f"the fastest plan fits within {limit}")
        detail = f"the fastest of {counted(len(self._plans), 'plan')} within {limit}"
        if best.seconds > self.base.seconds > 0:
            detail += f"; {_slower(best.seconds, self.base.seconds)}"
        return self._forecast(best, memory_bytes).with_remark("memory", detail)

    def _forecast(self, best: Outcome, memory_bytes: int) -> Plan:
        """Returns the plan of an outcome, with what is predicted of it."""
        base, plan = self.base.plan.forecast, best.plan.plan
        if base is None:
            return plan
        name = plan.forecast.plan if plan.forecast else f"preset {best.plan.strategy}"
        bound = self.least_seconds(best, memory_bytes)
        known = Forecast(name, best.plan.seconds, bound, is_limited=True)
        return replace(plan, forecast=known)

    def least_seconds(self, best: Outcome, memory_bytes: int) -> float:
        """Returns seconds that every plan takes at least that fits, whatever it computes again.

        Args:
            best: The fastest outcome known.
            memory_bytes: The limit.
        """
        forecast, searches = self.base.plan.forecast, self.searched.searches
        least = (forecast.bound_seconds if forecast else None) or 0.0
        more, fewer = best.seconds - self.base.seconds, self.base.peak_bytes - memory_bytes
        if not searches or more <= 0 or fewer <= 0 or self.searched.watch.is_late:
            return least
        bound = least_seconds_within(searches, memory_bytes, best.seconds, more / fewer)
        return max(least, min(bound, best.seconds))

    def fastest(self, memory_bytes: int) -> Outcome:
        """Returns the fastest outcome within a limit.

        Raises:
            DoesNotFit: If no plan fits.
        """
        best = self.faster(memory_bytes, math.inf)
        assert best is not None
        return best

    def faster(self, memory_bytes: int, below: float) -> Outcome | None:
        """Returns the fastest outcome within a limit; None if all take as long as is known.

        Args:
            memory_bytes: The limit.
            below: Serialized seconds that are known.

        Raises:
            DoesNotFit: If no plan fits, of all that were tried.
        """
        if self.base.peak_bytes <= memory_bytes:
            added = self._added_seconds(self.base, memory_bytes, below - self.base.seconds)
            return Outcome(self.base, added) if added < math.inf else None
        misses: list[DoesNotFit] = []
        best = self._walked(memory_bytes, misses, below)
        if best is None and below == math.inf:
            raise min(misses, key=lambda miss: miss.least_bytes).among(len(self._plans))
        return best

    def base_seconds(self, memory_bytes: int, below: float) -> float:
        """Returns serialized seconds of the plan that is the fastest if there is enough memory.

        Args:
            memory_bytes: The limit that it is made to fit into.
            below: What matters: infinity may be returned if it takes as much or more.

        Raises:
            DoesNotFit: If it can't be.
        """
        base = self.base
        return base.seconds + self._added_seconds(base, memory_bytes, below - base.seconds)

    def _walked(self, memory_bytes: int, misses: list[DoesNotFit], below: float) -> Outcome | None:
        """Returns the fastest outcome of all plans below what is known; None if there is none.

        Ends once no plan that is left can be faster.
        """
        best: Outcome | None = None
        untried, floor = [self.base, *self.presets], self.base.seconds
        steps = self.walk.steps()
        while True:
            ready = sorted((p for p in untried if p.seconds <= floor), key=lambda p: p.seconds)
            untried = [plan for plan in untried if plan.seconds > floor]
            best = self._fastest(ready, memory_bytes, misses, below, best)
            if math.isinf(floor) or floor >= (below if best is None else best.seconds):
                return best
            step = next(steps, Step((), math.inf))
            untried += step.plans
            floor = step.floor

    @cached_property
    def base(self) -> LoweredPlan:
        """The plan that is the fastest if there is enough memory."""
        return self._lowered(self.searched.best())

    @cached_property
    def walk(self) -> Walk:
        """The plans at prices."""
        return Walk(
            self.base,
            lambda price: self._lowered(self.searched.best(price)),
            lambda: self.searched.watch.is_late,
        )

    @cached_property
    def presets(self) -> list[LoweredPlan]:
        """The plans of presets, without those that don't suit the program.

        Those that are faster than the base are left out: where that fits no other plan is made, so
        with them more memory would be slower.
        """
        return [plan for plan in self._presets() if plan.seconds >= self.base.seconds]

    def _lowered(self, plan: Plan, strategy: str = "") -> LoweredPlan:
        """Returns a plan lowered; the same one for the same program."""
        for known in self._plans:
            if known.plan.seconds == plan.seconds and known.plan.is_like(plan):
                return known
        lowered = lowered_plan(plan, self.lower(plan.program), self.cluster, strategy)
        self._plans.append(lowered)
        return lowered

    def _presets(self) -> Iterator[LoweredPlan]:
        """Yields the plans of presets, without those that don't suit the program."""
        for strategy in self._strategies:
            try:
                yield self._lowered(propagated(self.problem, strategy), strategy)
            except AnnotationError:
                continue

    def _fastest(
        self,
        plans: Iterable[LoweredPlan],
        memory_bytes: int,
        misses: list[DoesNotFit],
        below: float,
        best: Outcome | None,
    ) -> Outcome | None:
        """Returns the fastest outcome of plans, the fastest first, or a better one known before."""
        for plan in plans:
            least = below if best is None else best.seconds
            if plan.seconds >= least:
                break
            try:
                added = self._added_seconds(plan, memory_bytes, least - plan.seconds)
            except DoesNotFit as miss:
                misses.append(miss)
                continue
            if plan.seconds + added < least:
                best = Outcome(plan, added)
        return best

    def _added_seconds(
        self, plan: LoweredPlan, memory_bytes: int, below: float = math.inf
    ) -> float:
        """Returns what it takes to make a plan fit; infinity if that isn't below what matters.

        Raises:
            DoesNotFit: If it can't be made to.
        """
        asked = self.offload or is_asked(plan.ranks)
        if plan.peak_bytes <= memory_bytes and not asked:
            return 0.0
        if id(plan) not in self._fitters:
            given = plan.ranks, self.cluster, self.offload, self._learned, self.update
            fitter = Fitter(*given, plan.looped)
            self._fitters[id(plan)] = fitter
        return self._fitters[id(plan)].added_seconds(memory_bytes, below)
