"""The frontier: what each plan that isn't beaten adds in seconds, and what it holds in bytes.

Plans are made for fixed levels of memory between all and the least, whatever a user's limit is,
and measured as wholes. A limit then only chooses among them, so that more memory never makes a
program slower, and less memory never makes it hold more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autopar.partition.recompute.cut import Way
from autopar.partition.recompute.live import live_bytes
from autopar.partition.recompute.plan import Planner
from autopar.partition.recompute.replay import replay
from autopar.partition.recompute.tape import Tape

LEVELS = 64
"""Number of levels of memory for which plans are made."""

HALVINGS = 12
"""Steps of the search for the least memory for which there is a plan."""


@dataclass(frozen=True, slots=True)
class Point:
    """A plan and what it costs.

    Attributes:
        repeated: The forward ops that are computed again.
        added_seconds: What this adds to a step.
        peak_bytes: The most bytes that a rank holds at once.
    """

    repeated: Way
    added_seconds: float
    peak_bytes: int


class Frontier:
    """The best known plans for a tape.

    Args:
        tape: The tape.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.unconstrained = measure(tape, frozenset())

    def fastest(self, limit: int) -> Point | None:
        """Returns the fastest plan that holds no more than a limit, None if none does."""
        if self.unconstrained.peak_bytes <= limit:
            return self.unconstrained
        return next((point for point in self.points if point.peak_bytes <= limit), None)

    @property
    def smallest(self) -> Point:
        """The plan that holds least."""
        return self.points[-1]

    @cached_property
    def points(self) -> list[Point]:
        """The plans of which none is beaten in both, from the fastest to the smallest."""
        ways: dict[Way, None] = {}
        planner = Planner(self.tape)
        most = self.unconstrained.peak_bytes
        least = _least(planner, most)
        for level in range(LEVELS):
            way = planner.plan(most - (most - least) * level // (LEVELS - 1))
            if way is not None:
                ways[way] = None
        found = [self.unconstrained, *(measure(self.tape, way) for way in ways if way)]
        found.sort(key=lambda point: (point.added_seconds, point.peak_bytes))
        kept: list[Point] = []
        for point in found:
            if not kept or point.peak_bytes < kept[-1].peak_bytes:
                kept.append(point)
        return kept


def measure(tape: Tape, repeated: Way) -> Point:
    """Returns what a plan costs."""
    steps = replay(tape, repeated, range(len(tape.ops)))
    seconds = sum(tape.seconds[step.op] for step in steps if step.batch >= 0)
    return Point(repeated, seconds, max(live_bytes(tape, steps), default=0))


def _least(planner: Planner, most: int) -> int:
    """Returns about the lowest limit for which there is a plan."""
    low, high = 0, most
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        if planner.plan(middle) is None:
            low = middle
        else:
            high = middle
    return high
