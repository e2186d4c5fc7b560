"""A save that runs beside the training."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

RUNNING, DONE, FAILED = range(3)
"""What becomes of a save."""


class Saving(threading.Thread):
    """Writes a checkpoint on a thread of its own, which the interpreter waits for when it ends.

    If nobody asks how it went, as no trainer is there any more, a warning says that it failed.

    Args:
        write: Writes it. What it holds is let go when it is done.
    """

    def __init__(self, write: Callable[[], None]) -> None:
        super().__init__(name="autopar-saving")
        self._write: Callable[[], None] | None = write
        self._error: Exception | None = None
        self._failed = False

    def run(self) -> None:
        """Writes it."""
        assert self._write is not None
        try:
            self._write()
        except Exception as error:
            self._error, self._failed = error, True
        finally:
            self._write = None

    @property
    def outcome(self) -> int:
        """`RUNNING`, `DONE` or `FAILED`."""
        if self.is_alive():
            return RUNNING
        return FAILED if self._failed else DONE

    def raise_error(self) -> None:
        """Raises what went wrong, once it has ended; nothing if nothing did.

        Raises:
            InvalidInputError: If the checkpoint couldn't be written.
            RuntimeFailure: If another process failed.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error from None

    def __del__(self) -> None:
        if self._error is not None:
            warnings.warn(f"a checkpoint wasn't saved: {self._error}", stacklevel=2)
