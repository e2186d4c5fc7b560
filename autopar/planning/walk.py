"""Walk: plans at rising prices of the bytes that a rank holds, each made when it is asked for.

A price makes the plan that is the fastest among those that hold as little (Everett, "Generalized
Lagrange multiplier method", 1963). Where two prices lead to different plans of inference, more are
made at both prices at once, of which one is that of the first layers: plans that no single price
leads to, because layers that are alike change together. In training, computing activations again
fills these gaps.

The steps of a walk are the same for every limit, which only decides after which of them it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autopar.completion.plan import Plan
from autopar.completion.search.network.memory_price import FREE, MemoryPrice
from autopar.cost import Cluster, evaluate, peak_rank_timeline
from autopar.ir.program import Program
from autopar.partition.recompute import Looped
from autopar.planning.lowering import Lowered

PRICES = tuple(2.0**number for number in range(-2, 10))
"""Prices of as many bytes as the plan without a price holds at most, in parts of its seconds."""

FEW_OPS, STRIDE = 500, 2
"""Of programs with more ops only every other price is tried."""

BETWEEN = ((0.5,), (0.25, 0.5, 0.75))
"""The parts of the layers at the lower price in plans between two prices: few, or more of them."""

FAR = 1.25
"""More of them are made where one plan takes so many times as long as the other."""

SLACK = 0.9
"""Later plans that take less than this part of what earlier ones took are left out. So what later
ones take at least is known before they are made, though a search may miss the fastest plan."""


@dataclass(frozen=True)
class LoweredPlan:
    """A plan, and what a rank runs of it, before recomputation.

    Attributes:
        plan: The plan.
        ranks: What a rank runs.
        seconds: Serialized.
        peak_bytes: The most that any rank holds at once.
        strategy: The preset that it is; "" of a plan that was searched.
        looped: What a rank runs, before microbatches are told apart; None if there are none.
    """

    plan: Plan
    ranks: Program
    seconds: float
    peak_bytes: int
    strategy: str = ""
    looped: Looped | None = None


def lowered_plan(plan: Plan, lowered: Lowered, cluster: Cluster, strategy: str = "") -> LoweredPlan:
    """Returns a plan with what is predicted of what a rank runs of it.

    Args:
        plan: The plan.
        lowered: The same, lowered.
        cluster: The hardware.
        strategy: The preset that it is; "" of a plan that was searched.
    """
    ranks, looped = lowered.ranks, lowered.looped
    seconds = evaluate(ranks, cluster).serialized_seconds
    held = peak_rank_timeline(ranks).peak_bytes if looped is None else looped.peak_bytes
    return LoweredPlan(plan, ranks, seconds, held, strategy, looped)


@dataclass(frozen=True)
class Step:
    """A step of a walk.

    Attributes:
        plans: Those that it adds.
        floor: What each plan of later steps takes at least, in seconds.
    """

    plans: tuple[LoweredPlan, ...]
    floor: float


class Walk:
    """The plans of a program from the fastest to that which holds the least.

    Args:
        base: The plan without a price.
        plan_at: Makes the plan at a price, before recomputation.
        is_late: Whether time is up.
    """

    def __init__(
        self,
        base: LoweredPlan,
        plan_at: Callable[[MemoryPrice], LoweredPlan],
        is_late: Callable[[], bool],
    ) -> None:
        self.base = base
        self._plan_at = plan_at
        self._is_late = is_late
        ops = base.plan.program.main.ops
        self._is_small = len(ops) <= FEW_OPS
        self._trains = any(op.phase == "backward" for op in ops)
        self._known: list[Step] = []
        self._left = self._steps()

    def steps(self) -> Iterator[Step]:
        """Yields the steps; those that were made before aren't made again."""
        yield from self._known
        for step in self._left:
            self._known.append(step)
            yield step

    def _steps(self) -> Iterator[Step]:
        unit = self.base.seconds / max(1, self.base.peak_bytes)
        cheaper, before, floor = FREE, self.base, self.base.seconds
        for each in PRICES[:: 1 if self._is_small else STRIDE]:
            if self._is_late():
                return
            dearer = MemoryPrice.of_all(each * unit)
            after = self._plan_at(dearer)
            plans = (after, *self._between(cheaper, before, dearer, after))
            kept = tuple(plan for plan in plans if plan.seconds >= floor)
            floor = max(floor, SLACK * after.seconds)
            yield Step(kept, floor)
            cheaper, before = dearer, after

    def _between(
        self, cheaper: MemoryPrice, before: LoweredPlan, dearer: MemoryPrice, after: LoweredPlan
    ) -> Iterator[LoweredPlan]:
        """Yields plans at two prices at once."""
        if self._trains or before is after:
            return
        for part in BETWEEN[after.seconds > FAR * before.seconds]:
            if self._is_late():
                return
            yield self._plan_at(MemoryPrice(cheaper.early, dearer.early, part))
