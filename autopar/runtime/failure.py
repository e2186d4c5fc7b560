"""How a rank's failure ends all ranks, with the one message that matters.

The first rank that fails writes its message into the store. The others, wherever they are stuck,
learn of it from there: those that notice a lost connection or a time-out look it up, and a thread
in each process watches for it and ends a process whose main thread doesn't come back.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence

from torch.distributed.distributed_c10d import Store

from autopar.ir.errors import RuntimeFailure

_FAILURE = "failure"
_ROLL_CALL = "roll-call"


class RankFailure(RuntimeFailure):
    """A rank failed, here or elsewhere.

    Attributes:
        rank: The rank that failed first.
        reason: What happened there.
    """

    def __init__(self, rank: int, reason: str) -> None:
        self.rank = rank
        self.reason = reason
        super().__init__(f"rank {rank} failed: {reason}")


class FailureBoard:
    """What the ranks tell one another about failures.

    Args:
        store: The store of all ranks.
        rank: This rank.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self.store = store
        self.rank = rank

    def report(self, reason: str) -> RankFailure:
        """Publishes why this rank failed; returns the first failure of any rank.

        Raises:
            RuntimeError: If the store is gone.
        """
        mine = json.dumps([self.rank, reason])
        return RankFailure(*json.loads(self.store.compare_set(_FAILURE, "", mine)))

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

    def count(self, event: str) -> None:
        """Notes that an event happened on this rank."""
        self.store.add(event, 1)

    def await_count(self, event: str, count: int, seconds: float) -> None:
        """Returns when `count` ranks have noted the event, or after some seconds."""
        deadline = time.monotonic() + seconds
        while self.store.add(event, 0) < count and time.monotonic() < deadline:
            time.sleep(0.02)

    def stuck(self, members: Sequence[int], place: str, seconds: float) -> dict[int, str]:
        """Returns the members that are known to wait in vain, with the place of each.

        Args:
            members: Ranks, this one among them.
            place: Where this rank waits.
            seconds: For how long to wait for the others' places.
        """
        return self._answers("stuck", members, place, seconds)

    def dead(self, members: Sequence[int], seconds: float) -> list[int]:
        """Returns the members that don't answer a roll call."""
        self.store.set(_ROLL_CALL, "1")
        answers = self._answers("alive", members, "1", seconds)
        return [member for member in members if member not in answers]

    def _answers(
        self, question: str, members: Sequence[int], mine: str, seconds: float
    ) -> dict[int, str]:
        self.store.set(f"{question}/{self.rank}", mine)
        keys = {member: f"{question}/{member}" for member in members}
        deadline = time.monotonic() + seconds
        while not self.store.check(list(keys.values())) and time.monotonic() < deadline:
            time.sleep(0.02)
        answered = [member for member, key in keys.items() if self.store.check([key])]
        return {member: self.store.get(keys[member]).decode() for member in answered}


class Watch(threading.Thread):
    """Watches for other ranks' failures while the main thread may be stuck.

    Args:
        board: A board with a store connection of its own: a blocking call occupies one.
        on_failure: Called with the failure if a rank failed and the main thread is still busy
            `grace` seconds later.
        busy: Returns whether the main thread is at work that needs the other ranks.
        interval: Seconds between looks.
        grace: Seconds left to the main thread.
    """

    def __init__(
        self,
        board: FailureBoard,
        on_failure: Callable[[RankFailure], None],
        busy: Callable[[], bool],
        interval: float = 0.2,
        grace: float = 2.0,
    ) -> None:
        super().__init__(name="autopar-watch", daemon=True)
        self.board = board
        self.on_failure = on_failure
        self.busy = busy
        self.interval = interval
        self.grace = grace
        self.ended = threading.Event()

    def run(self) -> None:
        """Looks at the board until the watch ends or the store is gone."""
        answered = False
        try:
            while not self.ended.wait(self.interval):
                if not answered and self.board.store.check([_ROLL_CALL]):
                    self.board.store.set(f"alive/{self.board.rank}", "1")
                    answered = True
                failure = self.board.first()
                if failure is None or self.ended.wait(self.grace):
                    continue
                if self.busy():
                    self.on_failure(failure)
                    return
        except RuntimeError:
            # The store went with the process that served it; the main thread loses its
            # connections too.
            return

    def stop(self) -> None:
        """Ends the watch."""
        self.ended.set()
        self.join(timeout=5)
