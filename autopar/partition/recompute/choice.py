"""The choice: the plan that a user's limit leads to.

Plans are made for fixed levels of memory, whatever the limit is, and measured as wholes. A limit
only chooses among them: the highest level whose plan fits. So more memory never makes a program
slower, and less memory never makes it hold more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from autopar.cost import memory_timeline
from autopar.partition.recompute.copies import write_copies
from autopar.partition.recompute.plan import Plan, Planner
from autopar.partition.recompute.replay import replay
from autopar.partition.recompute.tape import Tape
from autopar.partition.recompute.way import NOTHING, Way

LEVELS = 4096
"""Number of levels of memory, up to what a step takes if nothing is computed again."""

ABOVE = 1.02
"""Levels above a limit are looked at up to this part of it: plans may hold less than they may."""

SAME = 1 - 1e-9
"""Seconds that differ by no more than this are sums of the same in another order."""

DOUBT = 1.01
"""By how much more than a limit a plan may seem to hold until it is measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """A plan and what it costs.

    Attributes:
        way: What is computed again, and what leaves and comes back.
        added_seconds: What this adds to a step.
        peak_bytes: The most bytes that a rank holds at once.
    """

    way: Way
    added_seconds: float
    peak_bytes: int


class Choice:
    """The plans for a tape.

    Args:
        tape: The tape.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.unconstrained = measure(tape, NOTHING)
        self._planner = Planner(tape)
        self._points: dict[Way, Point] = {NOTHING: self.unconstrained}

    def fastest(self, limit: int) -> Point | None:
        """Returns the fastest known plan that holds no more than a limit, None if none does."""
        if self.unconstrained.peak_bytes <= limit:
            return self.unconstrained
        best: Point | None = None
        for plan in self._below(limit):
            # Plans of lower levels are slower, but some take longer than they seem to.
            if best is not None and plan.seconds >= best.added_seconds * SAME:
                return best
            point = self._measured(plan.way)
            faster = best is None or point.added_seconds < best.added_seconds
            if point.peak_bytes <= limit and faster:
                best = point
        # Where rounding counts, as in tiny programs, plans may seem to hold more than they do.
        if best is None and self.smallest.peak_bytes <= limit:
            return self.smallest
        return best

    def _below(self, limit: int) -> Iterator[Plan]:
        """Yields the plans of the levels up to about a limit, from the highest one on."""
        most = self.unconstrained.peak_bytes
        for level in range(min(LEVELS, int(limit * ABOVE) * LEVELS // most), 0, -1):
            plan = self._planner.plan(most * level // LEVELS)
            if plan is None:
                return
            if plan.peak_bytes <= limit * DOUBT:
                yield plan

    @cached_property
    def smallest(self) -> Point:
        """The plan of the lowest level for which there is one."""
        most = self.unconstrained.peak_bytes
        low, high = 0, LEVELS
        way = NOTHING
        while high - low > 1:
            middle = (low + high) // 2
            plan = self._planner.plan(most * middle // LEVELS)
            if plan is None:
                low = middle
            else:
                high = middle
                way = plan.way
        return self._measured(way)

    def _measured(self, way: Way) -> Point:
        if way not in self._points:
            self._points[way] = measure(self.tape, way)
        return self._points[way]


def measure(tape: Tape, way: Way) -> Point:
    """Returns what a plan costs: seconds as the sum of the copies, bytes as the evaluator says."""
    steps = replay(tape, way, range(len(tape.ops)))
    seconds = sum(step.seconds(tape) for step in steps)
    program = tape.program.with_main(write_copies(tape, steps))
    return Point(way, seconds, memory_timeline(program).peak_bytes)
