"""The choice: the plan that a user's limit leads to.

Plans are made for fixed levels of memory, whatever the limit is, and measured as wholes. A limit
only chooses among them: the fastest that fits, and of equally fast ones the smallest. A larger
limit has all of a smaller one's plans to choose from, so it is never slower; and if its choice held
less than the smaller one's, it would fit there, too, and be chosen as it is no slower and smaller.

Not all plans need to be made and measured for that. A plan counts only if measuring confirms what
it seems to take up to a known factor, and if it doesn't fit into the next lower band of levels,
which has plans of its own. Plans that can't be chosen are then known without a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

from autopar.cost import peak_bytes_of
from autopar.partition.recompute.copies import write_copies
from autopar.partition.recompute.once import Once
from autopar.partition.recompute.plan import Learned, Plan, Planner
from autopar.partition.recompute.replay import replay
from autopar.partition.recompute.tape import Tape
from autopar.partition.recompute.way import NOTHING, Point, Way

LEVELS = 4096
"""Number of levels of memory, up to what a step takes if nothing is computed again."""

BAND = 32
"""Number of levels of a band."""

LEVELS_ONCE = 64
"""Number of levels where what others hold at the same time is estimated, too; each is a band."""

SAME = 1 - 1e-9
"""Seconds that differ by no more than this are sums of the same in another order."""

DOUBT, DOUBT_ONCE = 1.01, 1.5
"""Up to which factor a plan that counts may seem to hold more than it does; and where what others
hold is estimated, too."""


class Choice:
    """The plans for a tape.

    Args:
        tape: The tape.
        learned: What is known of other programs; more is added.
        once: What the tape is of, where it is done for one microbatch of several.
    """

    def __init__(
        self, tape: Tape, learned: Learned | None = None, once: Once | None = None
    ) -> None:
        self.tape = tape
        self._once, self._doubt = once, DOUBT if once is None else DOUBT_ONCE
        self._top, self._band = (LEVELS, BAND) if once is None else (LEVELS_ONCE, 1)
        self.unconstrained = self._measure(NOTHING)
        self._planner = Planner(tape, learned, *(once.others() if once is not None else ()))
        self._made: dict[int, Plan | None] = {}
        self._points: dict[Way, Point] = {NOTHING: self.unconstrained}

    def fastest(self, limit: int, below: float = math.inf) -> Point | None:
        """Returns the fastest plan that holds no more than a limit; None if none does.

        Args:
            limit: In bytes.
            below: Where no plan that fits adds less than so many seconds, any of them may be
                returned, or None.
        """
        if self.unconstrained.peak_bytes <= limit:
            return self.unconstrained
        # Where rounding counts, as in tiny programs, plans may seem to hold more than they do.
        best = self._lowest if self._lowest.peak_bytes <= limit else None
        for plan in self._plans(limit * self._doubt):
            enough = below if best is None else min(below, best.added_seconds)
            if plan.seconds * SAME > enough:
                return best
            if plan.peak_bytes <= limit * self._doubt:
                point = self._measured(plan.way)
                fits = point.peak_bytes <= limit and _is_confirmed(plan, point, self._doubt)
                if fits and (best is None or _rank(point) < _rank(best)):
                    best = point
        return best or (self.smallest if self.smallest.peak_bytes <= limit else None)

    def _plans(self, most: float) -> Iterator[Plan]:
        """Yields the plans that count, from the highest level on, which is the fastest.

        Args:
            most: Bands of which all plans hold at least this are left out.
        """
        for bottom in reversed(range(0, self._top, self._band)):
            nbytes = self._bytes(bottom)
            level = bottom + self._band if nbytes < most else bottom
            while level > bottom:
                plan = self._plan(level)
                if plan is None:
                    return
                if plan.peak_bytes > nbytes:
                    yield plan
                # Down to what it holds, a plan is the fastest.
                level = min(level - 1, self._level_below(plan.peak_bytes))

    @cached_property
    def smallest(self) -> Point:
        """The plan that holds the least."""
        if self._once is None:
            return self._lowest
        plans = filter(None, map(self._plan, range(self._top + 1)))
        points = [self._measured(way) for way in dict.fromkeys(plan.way for plan in plans)]
        return min([self._lowest, *points], key=lambda point: point.peak_bytes)

    @cached_property
    def _lowest(self) -> Point:
        """The plan of the lowest level for which there is one."""
        low, high = 0, self._top
        way = NOTHING
        while high - low > 1:
            middle = (low + high) // 2
            plan = self._plan(middle)
            if plan is None:
                low = middle
            else:
                high = middle
                way = plan.way
        return self._measured(way)

    def _bytes(self, level: int) -> int:
        return self.unconstrained.peak_bytes * level // self._top

    def _level_below(self, nbytes: int) -> int:
        """Returns the highest level that is less than a number of bytes."""
        return (nbytes * self._top - 1) // self.unconstrained.peak_bytes

    def _plan(self, level: int) -> Plan | None:
        if level not in self._made:
            self._made[level] = self._planner.plan(self._bytes(level))
        return self._made[level]

    def _measured(self, way: Way) -> Point:
        if way not in self._points:
            self._points[way] = self._measure(way)
        return self._points[way]

    def _measure(self, way: Way) -> Point:
        return measure(self.tape, way) if self._once is None else self._once.measure(way)


def measure(tape: Tape, way: Way) -> Point:
    """Returns what a plan costs: seconds as the sum of the copies, bytes as the evaluator says."""
    steps = replay(tape, way, range(len(tape.ops)))
    seconds = sum(step.added_seconds(tape) for step in steps)
    program = tape.program.with_main(write_copies(tape, steps))
    return Point(way, seconds, peak_bytes_of(program, tape.kinds))


def _is_confirmed(plan: Plan, point: Point, doubt: float) -> bool:
    """Whether a plan takes as long as it seems to, and holds what it seems to but for a little."""
    slow = point.added_seconds >= plan.seconds * SAME
    return slow and plan.peak_bytes <= point.peak_bytes * doubt


def _rank(point: Point) -> tuple[float, int]:
    return point.added_seconds, point.peak_bytes
