"""What is closed at the end of a `with` block."""

from __future__ import annotations

import atexit
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager that is closed when its block ends."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what is held; closing twice does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def close_at_exit(opened: Closing) -> None:
    """Lets something be closed when the script ends without closing it, if it is still there.

    It is left alone where a process ends that was forked off: it isn't that process's to close, and
    the threads that would have to end for it are not there.
    """
    atexit.register(_close, weakref.ref(opened), os.getpid())


def _close(opened: Callable[[], Closing | None], process: int) -> None:
    if process == os.getpid() and (found := opened()) is not None:
        found.close()
