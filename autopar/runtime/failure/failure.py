"""How a rank's failure ends all ranks, with the one message that matters.

The first rank that fails writes its message into the store. The others, wherever they are stuck,
learn of it from there: those that notice a lost connection or a time-out look it up, and a thread
in each process watches for it (see `watch`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress

from torch.distributed.distributed_c10d import Store

from autopar.base.errors import RuntimeFailure
from autopar.runtime.failure.beats import Beat

_FAILURE = "failure"
_ALARMS = "alarms"
_INQUIRIES = "inquiries"
_REASON = "reason"
_CLOSED = "closed"
_ENDS = "ends"
_LEFT = "left"


class RankFailure(RuntimeFailure):
    """A rank failed, here or elsewhere.

    Attributes:
        rank: The rank that failed first: of ranks that hang or ended without a word that rank, and
            not the one that noticed.
        reason: What happened there.
        teller: The rank that told the others.
        silent: Ranks that didn't answer when it looked for who failed.
        alike: The ranks that failed of the same, it among them; none if it failed alone.
    """

    def __init__(
        self,
        rank: int,
        reason: str,
        teller: int | None = None,
        silent: Sequence[int] = (),
        alike: Sequence[int] = (),
    ) -> None:
        self.rank = rank
        self.reason = reason
        self.teller = rank if teller is None else teller
        self.silent = tuple(silent)
        self.alike = tuple(alike)
        ranks = ", ".join(map(str, alike))
        super().__init__(
            f"ranks {ranks} failed alike: {reason}" if alike else f"rank {rank} failed: {reason}"
        )

    def with_alike(self, ranks: Sequence[int]) -> RankFailure:
        """Returns the same failure as that of several ranks, which name the same op and reason."""
        return RankFailure(self.rank, self.reason, self.teller, self.silent, ranks)


class FailureBoard:
    """What the ranks tell one another about failures.

    Args:
        store: The store of all ranks.
        rank: This rank.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self.store = store
        self.rank = rank

    def report(self, failure: RankFailure) -> RankFailure:
        """Publishes a failure; returns the first failure of any rank.

        Raises:
            RuntimeError: If the store is gone.
        """
        mine = json.dumps([failure.rank, failure.reason, failure.teller, failure.silent])
        first = self.store.compare_set(_FAILURE, "", mine)
        self.alarm()
        return RankFailure(*json.loads(first))

    def note(self, reason: str) -> None:
        """Publishes what went wrong in an op of this rank."""
        self.store.set(f"{_REASON}/{self.rank}", reason)

    def alike(self, reason: str, size: int, seconds: float) -> list[int]:
        """Returns the ranks, of so many, of which an op failed for this reason within seconds."""
        keys = [f"{_REASON}/{rank}" for rank in range(size)]
        deadline = time.monotonic() + seconds
        while not self.store.check(keys) and time.monotonic() < deadline:
            time.sleep(0.02)
        known = {rank: key for rank, key in enumerate(keys) if self.store.check([key])}
        return [rank for rank, key in known.items() if self.store.get(key).decode() == reason]

    def first(self, seconds: float = 0.0) -> RankFailure | None:
        """Returns the first failure of any rank, or None if there is none within `seconds`.

        Raises:
            RuntimeError: If the store is gone.
        """
        deadline = time.monotonic() + seconds
        while not self.store.check([_FAILURE]):
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.02)
        return RankFailure(*json.loads(self.store.get(_FAILURE)))

    def alarm(self) -> int:
        """Makes all ranks look at the board and say where they are; returns the alarm's number."""
        return self.store.add(_ALARMS, 1)

    def alarms(self) -> int:
        """Returns the number of alarms so far."""
        return self.store.add(_ALARMS, 0)

    def may_inquire(self) -> bool:
        """Returns whether this rank is the first to ask who failed; the others wait for it."""
        return self.store.add(_INQUIRIES, 1) == 1

    def post(self, beat: Beat) -> None:
        """Publishes where this rank is."""
        self.store.set(f"beat/{self.rank}", beat.to_json())

    def beat(self, rank: int) -> Beat | None:
        """Returns where a rank last was; None if it never said so."""
        key = f"beat/{rank}"
        return Beat.from_json(self.store.get(key)) if self.store.check([key]) else None

    def announce_close(self) -> None:
        """Says that the store may end now, and all is well."""
        self.store.set(_CLOSED, "1")
        self.alarm()

    def is_closed(self) -> bool:
        """Returns whether the store may end, and all is well."""
        return self.store.check([_CLOSED])

    def leave(self) -> None:
        """Notes that this rank needs the store no more."""
        self.store.add(_LEFT, 1)

    def await_left(self, count: int, seconds: float) -> bool:
        """Returns whether `count` ranks need the store no more, within some seconds."""
        deadline = time.monotonic() + seconds
        while self.store.add(_LEFT, 0) < count:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def end(self, count: int, seconds: float) -> None:
        """Lets the ranks that need the store still know that it ends; for who serves it."""
        with suppress(RuntimeError):
            self.store.set(_ENDS, "1")
            self.alarm()
            self.await_left(count, seconds)

    def ends(self) -> bool:
        """Returns whether the store ends at any moment, and all is well."""
        return self.store.check([_ENDS])
