"""A save that runs beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Saving(threading.Thread):
    """Writes a checkpoint on a thread of its own, which the interpreter waits for when it ends.

    Args:
        write: Writes it.

    Attributes:
        error: What went wrong, once it has ended; None if nothing did.
    """

    def __init__(self, write: Callable[[], None]) -> None:
        super().__init__(name="autopar-saving")
        self._write = write
        self.error: Exception | None = None

    def run(self) -> None:
        """Writes it."""
        try:
            self._write()
        except Exception as error:
            self.error = error

    @property
    def outcome(self) -> int:
        """0 while it runs, 1 when it is done, 2 when it failed."""
        return 0 if self.is_alive() else 1 + (self.error is not None)
