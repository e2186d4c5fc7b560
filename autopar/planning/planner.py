"""The planner: the best plan of a problem, whatever it is limited by.

Everything that wants a plan asks here: a compilation, the search of a mesh's shape, alternatives to
a plan that is known. `completion` decides about one problem without a limit; `within_memory` tries
several of its plans, lowers each, and prices what comes of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.completion.complete import Searched, propagated
from autopar.completion.plan import Plan
from autopar.completion.presets.strategy import AUTO
from autopar.completion.problem.problem import Pinned, Problem
from autopar.completion.search.nearby import Nearby
from autopar.completion.search.watch import Watch
from autopar.cost import Cluster, evaluate
from autopar.ir.program import Program
from autopar.partition.recompute import Looped
from autopar.planning.fit import Fitter
from autopar.planning.lowering import Lowering
from autopar.planning.mesh_shape import Fastest, fastest_shape
from autopar.planning.walk import LoweredPlan, lowered_plan
from autopar.planning.within_memory import Within


@dataclass(frozen=True, eq=False)
class Planner:
    """Decides about one problem; what it learns under one limit it knows under the next.

    Attributes:
        problem: The problem.
        lowering: Lowers plans, to price them.
        strategy: `auto` to search; presets as `data:0,tensor:1`; None for nothing but the pins.
        watch: Limits and follows the search.
    """

    problem: Problem
    lowering: Lowering = field(repr=False)
    strategy: str | None = AUTO
    watch: Watch = field(default_factory=Watch, repr=False)

    def best(self, memory_bytes: int | None = None) -> Plan:
        """Returns the fastest plan known, as it is before anything is computed again.

        Args:
            memory_bytes: What a rank may hold at once; None for any number.

        Raises:
            AnnotationError: If pins contradict one another, or the strategy doesn't fit.
            DoesNotFit: If no plan that is searched fits; it says by how much the smallest misses.
        """
        if self.strategy != AUTO:
            return propagated(self.problem, self.strategy)
        if memory_bytes is None:
            return self.searched.best()
        return self.within.plan(memory_bytes)

    @cached_property
    def unlimited(self) -> LoweredPlan:
        """The fastest plan known if there is enough memory, lowered."""
        if self.strategy == AUTO:
            return self.within.base
        plan = propagated(self.problem, self.strategy)
        return lowered_plan(plan, self.lowering(plan.program), self.problem.cluster)

    def seconds(self, memory_bytes: int, below: float = math.inf) -> float:
        """Returns the serialized seconds of the fastest plan known once it fits.

        Args:
            memory_bytes: What a rank may hold at once.
            below: What matters: infinity may be returned if it takes as much or more.

        Raises:
            DoesNotFit: If no plan that is tried fits.
        """
        if self.strategy == AUTO:
            best = self.within.faster(memory_bytes, below)
            return math.inf if best is None else best.seconds
        return self.unlimited_seconds(memory_bytes, below)

    def unlimited_seconds(self, memory_bytes: int, below: float = math.inf) -> float:
        """Returns the same of the plan that is the fastest if there is enough memory.

        Raises:
            DoesNotFit: If it can't be made to fit.
        """
        if self.strategy == AUTO:
            return self.within.base_seconds(memory_bytes, below)
        base = self.unlimited
        if base.peak_bytes <= memory_bytes:
            return base.seconds
        return base.seconds + self._fitter.added_seconds(memory_bytes, below - base.seconds)

    @cached_property
    def _fitter(self) -> Fitter:
        return _fitter(self.lowering, self.unlimited.ranks, self.unlimited.looped)

    def ranks(self, completed: Program, memory_bytes: int | None = None) -> Program:
        """Returns what a rank would run of a completed program, to be priced.

        Raises:
            DoesNotFit: If it can't be made to fit into memory.
        """
        lowered = self.lowering(completed)
        fitter = _fitter(self.lowering, lowered.ranks, lowered.looped)
        return fitter.within(memory_bytes).program

    def nearby(
        self, pinned: Pinned, completed: Program, *, is_moved: bool = False
    ) -> Callable[[Pinned], Plan]:
        """Returns what makes plans in which one value or op is pinned otherwise.

        Args:
            pinned: The value or op, as it is.
            completed: The problem's program as it is completed. Where that was searched, other
                plans are found from it on; a preset follows from the pins anew.
            is_moved: Whether it was made for other hardware.
        """
        if self.strategy != AUTO or self._without(pinned).places.are_slices:
            return self._with
        return Nearby(self._without(pinned), completed, self.watch, is_moved=is_moved).with_pin

    def _without(self, pinned: Pinned) -> Problem:
        """Returns the problem without a pin."""
        return self.problem.with_pins([replace(pinned, dist=None, origin=None)])

    def _with(self, pinned: Pinned) -> Plan:
        problem = self.problem.with_pins([pinned])
        return Planner(problem, self.lowering, self.strategy, self.watch).best()

    @cached_property
    def searched(self) -> Searched:
        """The plans that search finds."""
        return Searched(self.problem, self.watch)

    @cached_property
    def within(self) -> Within:
        """The plans within limits of memory."""
        return Within(self.searched, self.lowering, self.lowering.offload, self.lowering.update)


def _fitter(lowering: Lowering, ranks: Program, looped: Looped | None) -> Fitter:
    """Returns what makes a lowered plan fit into limits of memory."""
    cluster, offload = lowering.cluster, lowering.offload
    return Fitter(ranks, cluster, offload, update=lowering.update, looped=looped)


def best_on_any_mesh(
    program: Program,
    devices: int,
    cluster: Cluster,
    lowering: Callable[[Problem], Lowering],
    memory_bytes: int | None = None,
    watch: Watch | None = None,
) -> Fastest:
    """Returns the mesh on which the fastest plan of a program is the fastest, and that plan.

    Args:
        program: The serial program, without a mesh and pins.
        devices: How many processes there are.
        cluster: The hardware.
        lowering: Returns what lowers plans of a problem.
        memory_bytes: What a rank may hold at once; None for any number.
        watch: Limits and follows the search.

    Raises:
        InvalidInputError: If no plan fits into memory on any mesh.
    """

    def within(searched: Searched) -> tuple[float, Plan]:
        lower = lowering(searched.problem)
        plans = Within(searched, lower, lower.offload, lower.update)
        plan = plans.plan(memory_bytes or 0)
        lowered = lower(plan.program)
        fitter = _fitter(lower, lowered.ranks, lowered.looped)
        ranks = fitter.within(memory_bytes).program
        return evaluate(ranks, cluster).serialized_seconds, plan

    best = None if memory_bytes is None else within
    return fastest_shape(program, devices, cluster, watch, best)
