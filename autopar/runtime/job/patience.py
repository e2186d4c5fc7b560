"""How long ranks wait for one another in a phase of several steps: one budget for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from autopar.runtime.job.limited import never, within

Result = TypeVar("Result")

DEFAULT_TIMEOUT = 600.0
"""Seconds that each collective waits for the other ranks."""

DEFAULT_START_TIMEOUT = 300.0
"""Seconds that the start waits for the other ranks: to import on a cold file system takes minutes.

One that ended meanwhile is noticed in seconds (see `pulse`).
"""

LEAST = 1.0
"""Seconds that a step may wait though the time is up: those who are there answer in less."""

_LONGEST_PAUSE = 0.05


class Patience:
    """What is left of the time that a rank waits for others.

    Only waiting counts, not what the rank does by itself meanwhile, as to read its weights.

    Args:
        seconds: The time.
        advice: What to do for a rank that takes longer.
    """

    def __init__(self, seconds: float, advice: str = "give start_timeout=") -> None:
        self.seconds = seconds
        self.advice = advice
        self._waited = 0.0

    @property
    def left(self) -> float:
        """Seconds that the next step may wait."""
        return max(LEAST, self.seconds - self._waited)

    def turns(self) -> Iterator[None]:
        """Yields again and again until the time is up, with pauses; what each turn takes counts."""
        last, pause = time.monotonic(), 0.001
        deadline = last + self.left
        while True:
            yield
            now = time.monotonic()
            self._waited += now - last
            if now >= deadline:
                return
            time.sleep(min(pause, deadline - now))
            last, pause = now, min(2 * pause, _LONGEST_PAUSE)

    def within(self, function: Callable[[], Result], in_vain: Callable[[], bool] = never) -> Result:
        """Returns what a function returns that may wait; see `within`."""
        began = time.monotonic()
        try:
            return within(self.left, function, in_vain)
        finally:
            self._waited += time.monotonic() - began
