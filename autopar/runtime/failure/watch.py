"""A thread that says where its rank is, and watches for failures while that may be stuck."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from autopar.runtime.failure.beats import Beat, Place
from autopar.runtime.failure.failure import FailureBoard, RankFailure
from autopar.runtime.failure.pulse import Pulse
from autopar.runtime.failure.whereabouts import START, Whereabouts
from autopar.runtime.job.siblings import end_if_stopped, system

LOOK = 0.5
"""Seconds between looks at the board."""

BEAT = 1.0
"""Seconds between beats: each is one write of about 300 bytes that nobody waits for."""

GRACE = 1.0
"""Seconds that the main thread is left to notice by itself that another rank failed."""


class Watch(threading.Thread):
    """Watches over one rank.

    Args:
        board: A board with a store connection of its own: a blocking call occupies one.
        whereabouts: Of the main thread.
        on_failure: Called with the failure if a rank failed and the main thread is still in the
            call that it was in then, `GRACE` seconds later.
        lost: Returns the failure of whoever serves the store when that is gone.
        size: Number of ranks.
        start_seconds: For how long the start waits for the others.

    Attributes:
        answered: When the store answered last.
    """

    def __init__(
        self,
        board: FailureBoard,
        whereabouts: Whereabouts,
        on_failure: Callable[[RankFailure], None],
        lost: Callable[[], RankFailure],
        size: int,
        start_seconds: float,
    ) -> None:
        super().__init__(name="autopar-watch", daemon=True)
        self.board = board
        self.whereabouts = whereabouts
        self.on_failure = on_failure
        self.lost = lost
        self._ended = threading.Event()
        self._noticed = threading.Event()
        self._alarms = 0
        self._posted = 0.0
        self.answered = time.monotonic()
        self._failure: RankFailure | None = None
        self._closed = False
        self._store_ends = False
        self._last: Place | None = None
        self._pulse = Pulse(board, size, start_seconds)
        self.post()

    def run(self) -> None:
        """Looks at the board until the watch ends, or the store does though it shouldn't."""
        try:
            while not self._ended.wait(LOOK):
                self._look()
                if self._store_ends:
                    # torch writes half a page of warnings if it asks a store that is gone.
                    self.board.leave()
                    return
            # Here and not by the main thread: the store may not answer, and torch waits for it.
            self.post(self._last)
            self.board.leave()
        except RuntimeError:
            # The main thread may wait for ranks that are still there.
            if not self._closed:
                self._failure = self.lost()
                while not self._ended.wait(LOOK):
                    self._act()

    def leave_alone(self) -> None:
        """Lets the main thread be, which knows of a failure, and goes on to say where it is."""
        self._noticed.set()

    def stop(self, last: Place, seconds: float) -> None:
        """Ends the watch.

        Args:
            last: Where the rank is from now on.
            seconds: How long to wait for that; where the store doesn't answer, it is in vain.
        """
        self._last = last
        self.leave_alone()
        self._ended.set()
        if self.is_alive():
            self.join(timeout=seconds)

    def post(self, place: Place | None = None) -> None:
        """Says where the rank is."""
        found, seconds = self.whereabouts.look() if place is None else (place, 0.0)
        self._posted = time.monotonic()
        own = (self.whereabouts.timed_out, system(), os.getppid(), os.getpid())
        self.board.post(Beat(self._alarms, time.time(), seconds, found, *own))

    def _look(self) -> None:
        alarms = self.board.alarms()
        self.answered = time.monotonic()
        if alarms != self._alarms:
            self._alarms = alarms
            self.post()
            self._failure = self.board.first()
            self._closed = self.board.is_closed()
            self._store_ends = self._failure is None and self.board.ends()
        elif time.monotonic() - self._posted >= BEAT:
            self.post()
            self._feel()
        self._act()

    def _feel(self) -> None:
        if self._failure is None and self.whereabouts.call == START:
            failure = self._pulse.failure()
            self._failure = None if failure is None else self.board.report(failure)

    def _act(self) -> None:
        if self._failure is None:
            return
        for rank in self._failure.silent:
            end_if_stopped(rank, self._last_beat(rank))
        entry = self._entry()
        if entry and not self._noticed.wait(GRACE) and self._entry() == entry:
            self._ended.set()
            self.on_failure(self._failure)

    def _entry(self) -> int:
        """Returns the number of the call that the main thread is in; 0 outside."""
        return self.whereabouts.entries if self.whereabouts.is_inside else 0

    def _last_beat(self, rank: int) -> Beat | None:
        try:
            return self.board.beat(rank)
        except RuntimeError:
            return None
