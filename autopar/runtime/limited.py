"""Calls of libraries that may never return, and must."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


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


def within(seconds: float, function: Callable[[], Result]) -> Result:
    """Returns what a function returns, which is called on a thread.

    Raises:
        TimeoutError: If it doesn't return in time; the thread is left to itself.
    """
    call = _Call(function)
    call.start()
    call.join(seconds)
    if call.error is not None:
        raise call.error
    if not call.results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return call.results[0]
