"""Calls of libraries that may never return, and must."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")

LOOK = 0.05
"""Seconds between looks at whether waiting is in vain."""


class Vain(Exception):
    """What was waited for can't come any more."""


class _Call(threading.Thread, Generic[Result]):
    def __init__(self, function: Callable[[], Result]) -> None:
        super().__init__(name="autopar-call", daemon=True)
        self.function = function
        self.results: list[Result] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.results.append(self.function())
        except Exception as error:
            self.error = error


def never() -> bool:
    """Returns that waiting isn't in vain, as far as one knows."""
    return False


def within(
    seconds: float, function: Callable[[], Result], in_vain: Callable[[], bool] = never
) -> Result:
    """Returns what a function returns, which is called on a thread.

    Args:
        seconds: How long to wait for it.
        function: The function.
        in_vain: Returns whether it is known by now that it won't return.

    Raises:
        TimeoutError: If it doesn't return in time; the thread is left to itself.
        Vain: If it is known not to.
    """
    call, deadline = _Call(function), time.monotonic() + seconds
    call.start()
    while call.is_alive() and (left := deadline - time.monotonic()) > 0:
        call.join(left if in_vain is never else min(left, LOOK))
        if call.is_alive() and in_vain():
            raise Vain
    if call.error is not None:
        raise call.error
    if not call.results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return call.results[0]
