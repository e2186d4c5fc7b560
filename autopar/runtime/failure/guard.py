"""A thread that notices that the store doesn't answer any more, and the watch waits for it.

torch waits for an answer forever. Where a killed process served the store, its connections end;
where a stopped one does, or its host is gone, nothing tells.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.failure.watch import Watch
from autopar.runtime.failure.whereabouts import START, Whereabouts


class Guard(threading.Thread):
    """Guards one watch.

    Args:
        watch: The watch.
        whereabouts: Of the main thread.
        seconds: For how long a call waits for other ranks.
        start_seconds: For how long the start does.
        on_failure: Called if the store hasn't answered for so long while the main thread was in a
            call, with the failure of who serves it.
        silent: Returns that failure.
    """

    def __init__(
        self,
        watch: Watch,
        whereabouts: Whereabouts,
        seconds: float,
        start_seconds: float,
        on_failure: Callable[[RankFailure], None],
        silent: Callable[[], RankFailure],
    ) -> None:
        super().__init__(name="autopar-guard", daemon=True)
        self.watch = watch
        self.whereabouts = whereabouts
        self.seconds = seconds
        self.start_seconds = start_seconds
        self.on_failure = on_failure
        self.silent = silent
        self._ended = threading.Event()

    def run(self) -> None:
        """Looks at the watch until that ends."""
        while self.watch.is_alive() and not self._ended.wait(1.0):
            started = self.whereabouts.call == START
            # The main thread may notice by itself that it waits in vain.
            limit = 2.0 + (self.start_seconds if started else self.seconds)
            waited = time.monotonic() - self.watch.answered
            if self.whereabouts.is_inside and waited > limit:
                self.on_failure(self.silent())
                return

    def stop(self) -> None:
        """Ends the guard."""
        self._ended.set()
