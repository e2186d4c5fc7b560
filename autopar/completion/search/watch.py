"""Watch: how long a search may take, and who is told how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

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
    """The time of one compilation, from when it is made.

    Args:
        seconds_limit: Wall time after which the best plan so far is taken; None for no limit, with
            which the same program always gets the same plan.
        tell: Called often, with how far the search is.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        seconds_limit: float | None = None,
        tell: Callable[[Progress], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds_limit = seconds_limit
        self.tell = tell or _nobody
        self._clock, self._start = clock, clock()

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
        """Whether the limit is reached."""
        limit = self.seconds_limit
        return limit is not None and self._clock() - self._start > limit

    def check(self) -> None:
        """Lets a step of a search end soon after the limit.

        Raises:
            TimeIsUp: If the limit is passed by half of it, and at least by `GRACE`.
        """
        limit = self.seconds_limit
        if limit is not None and self._clock() - self._start > limit + max(GRACE, limit / 2):
            raise TimeIsUp


def is_idle(figures: Sequence[float], turns: int, part: float) -> bool:
    """Whether a figure fell by less than a part of it in as many turns, the last ones."""
    return len(figures) > turns and figures[-1] > figures[-1 - turns] * (1 - part)


def _nobody(progress: Progress) -> None:
    """Nobody is told."""
