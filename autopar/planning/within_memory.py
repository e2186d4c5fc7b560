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
from autopar.base.units import counted, human_bytes, human_slowdown
from autopar.completion import Complete
from autopar.completion.complete import Completed
from autopar.completion.search.bounds.lagrangian import least_seconds_within
from autopar.completion.search.forecast import Forecast
from autopar.completion.search.incumbents import strategies
from autopar.completion.search.network.memory_price import FREE
from autopar.cost import Cluster, evaluate, fullest_timeline
from autopar.ir.activations import is_asked
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Program
from autopar.partition.recompute import DoesNotFit, Learned, Recomputer
from autopar.planning.walk import Plan, Step, Walk

PRESET_OPS = 2_000
"""Ops that the usual presets complete in sum."""

MOST_PRESETS = 16
"""Usual presets that are tried at most."""


@dataclass(frozen=True)
class Outcome:
    """A plan that fits into memory.

    Attributes:
        plan: The plan.
        added_seconds: Serialized seconds that recomputation adds.
    """

    plan: Plan
    added_seconds: float

    @property
    def seconds(self) -> float:
        """Serialized seconds of what is run."""
        return self.plan.seconds + self.added_seconds


class Within:
    """The plans of a program for any limit of memory.

    Args:
        complete: Searches.
        program: The serial program, on a mesh.
        lower: The passes from a completed program to that of a rank, before recomputation.
        cluster: Predicts seconds.
    """

    def __init__(
        self,
        complete: Complete,
        program: Program,
        lower: Callable[[Program], Program],
        cluster: Cluster,
    ) -> None:
        assert program.mesh is not None
        self.complete = _begun(complete, program)
        self.program = program
        self.lower = lower
        self.cluster = cluster
        self._recomputers: dict[int, Recomputer] = {}
        self._learned = Learned()
        self._at_price = self.complete.at_prices(program)
        self._plans: list[Plan] = []
        count = min(MOST_PRESETS, PRESET_OPS // max(1, len(program.main.ops)))
        usual = islice(strategies(program.mesh), count)
        self._strategies = dict.fromkeys((*usual, *_leanest(program.mesh)))

    def completed(self, memory_bytes: int) -> Completed:
        """Returns the completed program that is the fastest once it fits.

        Args:
            memory_bytes: What a rank may hold at once.

        Raises:
            DoesNotFit: If no plan fits; it says by how much the smallest one misses.
        """
        best = self.fastest(memory_bytes)
        limit = human_bytes(memory_bytes)
        if self.base.peak_bytes <= memory_bytes:
            return _with_remark(best.plan.completed, f"the fastest plan fits within {limit}")
        detail = f"the fastest of {counted(len(self._plans), 'plan')} within {limit}"
        if best.seconds > self.base.seconds > 0:
            slower = human_slowdown(best.seconds / self.base.seconds)
            detail += f"; {slower} the fastest without a limit"
        return _with_remark(self._forecast(best, memory_bytes), detail)

    def _forecast(self, best: Outcome, memory_bytes: int) -> Completed:
        """Returns the program of an outcome, with what is predicted of it."""
        base, found = self.base.completed.forecast, best.plan.completed
        if base is None:
            return found
        name = found.forecast.plan if found.forecast else f"preset {best.plan.strategy}"
        bound = self.least_seconds(best, memory_bytes)
        known = Forecast(name, best.plan.seconds, bound, is_limited=True)
        return replace(found, forecast=known)

    def least_seconds(self, best: Outcome, memory_bytes: int) -> float:
        """Returns seconds that every plan takes at least that fits, whatever it computes again.

        Args:
            best: The fastest outcome known.
            memory_bytes: The limit.
        """
        forecast, searches = self.base.completed.forecast, self.complete.begun
        least = (forecast.bound_seconds if forecast else None) or 0.0
        more, fewer = best.seconds - self.base.seconds, self.base.peak_bytes - memory_bytes
        if not searches or more <= 0 or fewer <= 0 or self.complete.watch.is_late:
            return least
        found = least_seconds_within(searches, memory_bytes, best.seconds, more / fewer)
        return max(least, min(found, best.seconds))

    def fastest(self, memory_bytes: int) -> Outcome:
        """Returns the fastest outcome within a limit.

        Raises:
            DoesNotFit: If no plan fits.
        """
        if self.base.peak_bytes <= memory_bytes:
            return Outcome(self.base, self._added_seconds(self.base, memory_bytes))
        misses: list[DoesNotFit] = []
        best = self._walked(memory_bytes, misses)
        if best is None:
            raise min(misses, key=lambda miss: miss.least_bytes).among(len(self._plans))
        return best

    def _walked(self, memory_bytes: int, misses: list[DoesNotFit]) -> Outcome | None:
        """Returns the fastest outcome of all plans; None if none fits.

        Ends once no plan that is left can be faster.
        """
        best: Outcome | None = None
        waiting, floor = [self.base, *self.presets], self.base.seconds
        steps = self.walk.steps()
        while True:
            ready = sorted((p for p in waiting if p.seconds <= floor), key=lambda p: p.seconds)
            waiting = [plan for plan in waiting if plan.seconds > floor]
            best = self._fastest(ready, memory_bytes, misses, best)
            if math.isinf(floor) or (best is not None and best.seconds <= floor):
                return best
            step = next(steps, Step((), math.inf))
            waiting += step.plans
            floor = step.floor

    @cached_property
    def base(self) -> Plan:
        """The plan that is the fastest if there is enough memory."""
        return self._plan(self._at_price(FREE))

    @cached_property
    def walk(self) -> Walk:
        """The plans at prices."""
        return Walk(
            self.base,
            lambda price: self._plan(self._at_price(price)),
            lambda: self.complete.watch.is_late,
        )

    @cached_property
    def presets(self) -> list[Plan]:
        """The plans of presets, without those that don't suit the program.

        Those that are faster than the base are left out: where that fits no other plan is made, so
        with them more memory would be slower.
        """
        return [plan for plan in self._presets() if plan.seconds >= self.base.seconds]

    def _plan(self, completed: Completed, strategy: str = "") -> Plan:
        """Returns a plan; the same one for the same program."""
        for known in self._plans:
            if known.completed.seconds == completed.seconds and _is_same(known, completed):
                return known
        lowered = self.lower(completed.program)
        seconds = evaluate(lowered, self.cluster).serialized_seconds
        peak_bytes = fullest_timeline(lowered).peak_bytes
        self._plans.append(Plan(completed, lowered, seconds, peak_bytes, strategy))
        return self._plans[-1]

    def _presets(self) -> Iterator[Plan]:
        """Yields the plans of presets, without those that don't suit the program."""
        for strategy in self._strategies:
            try:
                completed = replace(self.complete, strategy=strategy).decide(self.program)
                yield self._plan(completed, strategy)
            except AnnotationError:
                continue

    def _fastest(
        self,
        plans: Iterable[Plan],
        memory_bytes: int,
        misses: list[DoesNotFit],
        best: Outcome | None,
    ) -> Outcome | None:
        """Returns the fastest outcome of plans, the fastest first, or a better one known before."""
        for plan in plans:
            if best is not None and plan.seconds >= best.seconds:
                break
            below = math.inf if best is None else best.seconds - plan.seconds
            try:
                outcome = Outcome(plan, self._added_seconds(plan, memory_bytes, below))
            except DoesNotFit as miss:
                misses.append(miss)
                continue
            if best is None or outcome.seconds < best.seconds:
                best = outcome
        return best

    def _added_seconds(self, plan: Plan, memory_bytes: int, below: float = math.inf) -> float:
        """Returns what it takes to make a plan fit; infinity if that isn't below what matters.

        Raises:
            DoesNotFit: If it can't be made to.
        """
        if plan.peak_bytes <= memory_bytes and not is_asked(plan.lowered.main.ops):
            return 0.0
        if id(plan) not in self._recomputers:
            self._recomputers[id(plan)] = Recomputer(plan.lowered, self.cluster, self._learned)
        return self._recomputers[id(plan)].added_seconds(memory_bytes, below)


def _begun(complete: Complete, program: Program) -> Complete:
    """Returns what completes a program, with its searches, if it is searched on one mesh."""
    try:
        return (
            complete if complete.begun else replace(complete, begun=complete.searches_of(program))
        )
    except AnnotationError:
        return complete


def _is_same(known: Plan, completed: Completed) -> bool:
    """Whether a program is that of a plan, whyever it was chosen."""
    one, other = known.completed.program.main, completed.program.main
    return _layouts(one) == _layouts(other)


def _layouts(main: Function) -> tuple[object, ...]:
    values = {name: value.dist for name, value in main.values.items()}
    return values, tuple((op.results, op.dist) for op in main.ops)


def _leanest(mesh: ProcessMesh) -> Iterator[str]:
    """Yields the presets that keep least: `fsdp` along all axes, or along all but one."""
    axes = [axis for axis in mesh.dim_names if mesh.axis_size(axis) > 1]
    for tensor in (None, *axes):
        yield ",".join(f"{'tensor' if axis == tensor else 'fsdp'}:{axis}" for axis in axes)


def _with_remark(completed: Completed, detail: str) -> Completed:
    remark = ReportEntry("search", "memory", detail)
    return replace(completed, remarks=(*completed.remarks, remark))
