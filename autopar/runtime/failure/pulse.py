"""Notices at the start that a rank ended: before ranks are connected, nothing else tells.

Each rank looks at the next one, so that it costs little however many there are.
"""

from __future__ import annotations

import time

from autopar.runtime.failure.beats import Beat
from autopar.runtime.failure.failure import FailureBoard, RankFailure
from autopar.runtime.job.siblings import is_gone, is_here


class Pulse:
    """The pulse of the next rank.

    Of a process of the same host the system says at once whether it has ended, and silence means
    nothing: a thread that is to beat waits while the machine swaps, is suspended, or a library
    keeps the interpreter. Of other hosts nobody knows. There a rank that is silent for as long as
    the start waits for ranks is taken for dead; nothing shorter tells a dead one from a slow one,
    and whoever started the ranks of that host notices most deaths long before.

    Args:
        board: What ranks tell one another.
        size: Number of ranks.
        seconds: For how long the start waits for the others.
    """

    def __init__(self, board: FailureBoard, size: int, seconds: float) -> None:
        self.board = board
        self.rank = (board.rank + 1) % size
        self.seconds = seconds
        self._last: Beat | None = None
        self._since = time.monotonic()

    def failure(self) -> RankFailure | None:
        """Returns the failure of the next rank, if it was there and has ended."""
        beat = self.board.beat(self.rank)
        if beat is None:
            return None
        if beat.place.kind == "closed":
            # Otherwise it is done: some programs need nobody else.
            return self._of(f"it left the program: {beat.place.text}") if beat.place.text else None
        if beat != self._last:
            self._last, self._since = beat, time.monotonic()
            return None
        silent = not is_here(beat) and time.monotonic() - self._since > self.seconds
        if not is_gone(beat) and not silent:
            return None
        return self._of(
            f"it ended without a word (killed?); last seen {beat.age:.0f} s ago {beat.place}"
        )

    def _of(self, reason: str) -> RankFailure:
        return RankFailure(self.rank, reason, self.board.rank, (self.rank,))
