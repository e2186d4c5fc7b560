"""Short texts between the processes, through their store and no collective.

So a thread can send them while the main thread trains. Every process makes the same calls in the
same order. Texts are short: the store refuses what is longer than a few MiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch.distributed.distributed_c10d import Store

from autopar.ir.errors import RuntimeFailure
from autopar.runtime.failure import RankFailure

_LONGEST_PAUSE = 0.05


def _nothing() -> None:
    """Is told of no failure, and meets nobody."""


class Messages:
    """What one process says to the others and hears from them.

    Args:
        store: The store of all processes, on a connection that nobody else uses meanwhile.
        rank: This process.
        size: Number of processes.
        seconds: For how long to wait for a word of another process.
        failure: Returns the failure of another process, if there is one.
        meet: Called once for each exchange, before anybody waits: a collective there notices at
            once that a process has died.
    """

    def __init__(
        self,
        store: Store,
        rank: int = 0,
        size: int = 1,
        seconds: float = 600.0,
        failure: Callable[[], RuntimeFailure | None] = _nothing,
        meet: Callable[[], object] = _nothing,
    ) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._seconds = seconds
        self._failure = failure
        self._meet = meet
        self._exchanges = 0
        self._read_by_all: list[str] = []

    @property
    def first(self) -> bool:
        """Whether this process is the one that speaks to all."""
        return self.rank == 0

    def from_first(self, text: str = "") -> str:
        """Returns what rank 0 gives; what others give doesn't count.

        Raises:
            RuntimeFailure: If another process failed, or nothing is heard.
        """
        key = self._next_key()
        if self.first:
            self._store.set(key, text)
            self._read_by_all.append(key)
        self._meet()
        return text if self.first else self._heard(key, 0)

    def to_first(self, text: str) -> list[str]:
        """Returns on rank 0 what each process gives, by rank; on the others nothing.

        Raises:
            RuntimeFailure: If another process failed, or nothing is heard.
        """
        key = self._next_key()
        if not self.first:
            self._store.set(f"{key}/{self.rank}", text)
        self._meet()
        if not self.first:
            return []
        others = [self._heard(f"{key}/{rank}", rank) for rank in range(1, self.size)]
        # Whoever has answered has read all that was said before.
        for old in (*self._read_by_all, *(f"{key}/{rank}" for rank in range(1, self.size))):
            self._store.delete_key(old)
        self._read_by_all.clear()
        return [text, *others]

    def agreed(self, problem: str) -> str:
        """Returns the same problem on all ranks: that of the first that has one; "" if none has.

        Raises:
            RuntimeFailure: If another process failed, or nothing is heard.
        """
        found = self.to_first(problem)
        return self.from_first(next((each for each in found if each), ""))

    def _next_key(self) -> str:
        self._exchanges += 1
        return str(self._exchanges)

    def _heard(self, key: str, rank: int) -> str:
        deadline = time.monotonic() + self._seconds
        pause = 0.001
        while not self._store.check([key]):
            if failure := self._failure():
                raise failure
            if time.monotonic() > deadline:
                raise RankFailure(rank, f"no word from it within {self._seconds:g} s", self.rank)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return str(self._store.get(key).decode())
