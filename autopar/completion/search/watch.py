"""Watch: how long a search may take, and who is told how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


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


class Watch:
    """The time of one compilation, from when it is made.

    Args:
        seconds_limit: Wall time after which the best plan so far is taken; None for no limit, with
            which the same program always gets the same plan.
        tell: Called often, with how far the search is.
    """

    def __init__(
        self, seconds_limit: float | None = None, tell: Callable[[Progress], None] | None = None
    ) -> None:
        self.seconds_limit = seconds_limit
        self.tell = tell or _nobody
        self._start = time.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether the limit is reached."""
        limit = self.seconds_limit
        return limit is not None and time.monotonic() - self._start > limit


def _nobody(progress: Progress) -> None:
    """Nobody is told."""
