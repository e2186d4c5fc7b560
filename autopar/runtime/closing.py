"""What is closed at the end of a `with` block."""

from __future__ import annotations

import atexit
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
    """Lets something be closed when the script ends without closing it, if it is still there."""
    atexit.register(_close, weakref.ref(opened))


def _close(opened: Callable[[], Closing | None]) -> None:
    if (found := opened()) is not None:
        found.close()
