"""Watch: how long a search may take, and who is told how far it is.

A search ends with the best plan so far when it has done as much work as its program is worth. Work
is counted, not timed: so the same program gets the same plan everywhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

from autopar.completion.search.effort import LEAST_WORK, OP_WORK

GRACE = 2.0
"""Seconds for which a search may go on with what it is at after its limit."""


@dataclass(frozen=True)
class Progress:
    """How far a search is.

    Attributes:
        doing: What is done at the moment.
        seconds: Predicted seconds of the best plan so far; None if there is none yet.
        bound_seconds: Seconds that every plan takes at least, as far as it is known.
    """

    doing: str
    seconds: float | None = None
    bound_seconds: float = 0.0


class TimeIsUp(Exception):
    """Ends a step of a search that has gone on for too long after its time limit."""


class Watch:
    """The time of one compilation, from when it is made, and the work of each of its searches.

    Args:
        time_limit: Wall time after which the best plan so far is taken; None for no limit, with
            which the same program always gets the same plan.
        tell: Called often, with how far the search is.
        clock: Returns the time in seconds.
        effort: How many times the usual work a search may take; None for any.

    Attributes:
        work: What the search has done, in seconds that it takes about.
    """

    def __init__(
        self,
        time_limit: float | None = None,
        tell: Callable[[Progress], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        effort: float | None = 1.0,
    ) -> None:
        self.time_limit = time_limit
        self.effort = effort
        self.tell = tell or _nobody
        self.work = 0.0
        self._work_limit = math.inf
        self._clock, self._start = clock, clock()

    def over(self, ops: int) -> Watch:
        """Returns the same watch for the search of a program of so many ops."""
        watch = copy(self)
        if self.effort is not None:
            watch._work_limit = self.effort * (LEAST_WORK + OP_WORK * ops)
        watch.renew()
        return watch

    def renew(self) -> None:
        """Lets the search do as much work again."""
        self.work = 0.0

    def spend(self, seconds: float) -> None:
        """Counts work, given as the seconds that it takes about."""
        self.work += seconds

    def is_worth(self, seconds: float) -> bool:
        """Whether so much work leaves half of what the search may still do for the rest."""
        return seconds <= (self._work_limit - self.work) / 2

    def on(self, part: str) -> Watch:
        """Returns the same watch for one of several searches.

        Args:
            part: What is searched, which comes before what is told.
        """
        told = self.tell
        watch = copy(self)
        watch.tell = lambda now: told(replace(now, doing=f"{part}: {now.doing}"))
        return watch

    @property
    def is_late(self) -> bool:
        """Whether the search is to end: its time is over, or its work done."""
        return self.is_spent or self.is_out_of_time

    @property
    def is_spent(self) -> bool:
        """Whether the search has done what work it may."""
        return self.work > self._work_limit

    @property
    def is_half_spent(self) -> bool:
        """Whether it has done half of it."""
        return self.work > self._work_limit / 2

    @property
    def is_out_of_time(self) -> bool:
        """Whether the limit of time is reached."""
        limit = self.time_limit
        return limit is not None and self._clock() - self._start > limit

    def check(self) -> None:
        """Lets a step of a search end soon after a limit.

        Raises:
            TimeIsUp: If a limit is passed by half of it, that of time at least by `GRACE`.
        """
        limit = self.time_limit
        late = limit is not None and self._clock() - self._start > limit + max(GRACE, limit / 2)
        if late or self.work > self._work_limit * 1.5:
            raise TimeIsUp


def is_idle(figures: Sequence[float], turns: int, part: float) -> bool:
    """Whether a figure fell by less than a part of it in as many turns, the last ones."""
    return len(figures) > turns and figures[-1] > figures[-1 - turns] * (1 - part)


def _nobody(progress: Progress) -> None:
    """Nobody is told."""
