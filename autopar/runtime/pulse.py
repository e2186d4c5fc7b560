"""Notices at the start that a rank ended: before ranks are connected, nothing else tells.

Each rank looks at the next one, so that it costs little however many there are.
"""

from __future__ import annotations

import time

from autopar.runtime.beats import Beat
from autopar.runtime.failure import FailureBoard, RankFailure
from autopar.runtime.siblings import is_gone

MISSED = 8.0
"""Seconds without a beat after which a rank is taken for dead; of a dead process of this host one
knows at once."""


class Pulse:
    """The pulse of the next rank.

    Args:
        board: What ranks tell one another.
        size: Number of ranks.
    """

    def __init__(self, board: FailureBoard, size: int) -> None:
        self.board = board
        self.rank = (board.rank + 1) % size
        self._last: Beat | None = None
        self._since = time.monotonic()

    def failure(self) -> RankFailure | None:
        """Returns the failure of the next rank, if it was there and ended without a word."""
        beat = self.board.beat(self.rank)
        if beat is None or beat.place.kind == "closed":
            return None
        if beat != self._last:
            self._last, self._since = beat, time.monotonic()
        elif is_gone(beat) or time.monotonic() - self._since > MISSED:
            seen = f"last seen {beat.age:.0f} s ago {beat.place}"
            reason = f"it ended without a word (killed?); {seen}"
            return RankFailure(self.rank, reason, self.board.rank, (self.rank,))
        return None
