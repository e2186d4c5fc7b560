"""Messages between the processes, through their store: the one way in which they exchange texts.

It needs no collective, so a thread can send them while the main thread trains. Every process makes
the same calls in the same order. Texts are short; what may be longer is sent packed and in parts.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed import DistNetworkError
from torch.distributed.distributed_c10d import Store

from autopar.base.errors import AnnotationError, AutoparError, InvalidInputError, RuntimeFailure
from autopar.runtime.failure.failure import RankFailure

MOST = 1 << 30
"""Bytes that a message may have."""

_PART = 1 << 20
"""Bytes that the store is given at once: it refuses more than some MiB."""

_LONGEST_PAUSE = 0.05

_ERRORS: tuple[type[AutoparError], ...] = (AnnotationError, InvalidInputError, RuntimeFailure)
"""The errors that are the same class on all processes; others are their common base there."""


def _nothing() -> None:
    """Is told of no failure, and meets nobody."""


def _gone() -> RuntimeFailure:
    return RuntimeFailure("the store over which the processes meet is gone")


class Messages:
    """What one process says to the others and hears from them.

    Args:
        store: The store of all processes, on a connection that nobody else uses meanwhile.
        rank: This process.
        size: Number of processes.
        seconds: For how long to wait for a word of another process.
        failure: Returns the failure of another process, if there is one.
        meet: Called in each exchange before anybody waits, and when all have heard rank 0: a
            collective there notices at once that a process has died.
        lost: Returns the failure of who serves the store, when that is gone.
    """

    def __init__(
        self,
        store: Store,
        rank: int = 0,
        size: int = 1,
        seconds: float = 600.0,
        failure: Callable[[], RuntimeFailure | None] = _nothing,
        meet: Callable[[], object] = _nothing,
        lost: Callable[[], RuntimeFailure] = _gone,
    ) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._seconds = seconds
        self._failure = failure
        self._meet = meet
        self._lost = lost
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
        found = self._said_by_first(text)
        # The process of rank 0, which may serve the store, may end as soon as it has spoken.
        self._meet()
        return found

    def made_by_first(self, make: Callable[[], bytes]) -> bytes:
        """Returns what rank 0 makes.

        Args:
            make: Called on rank 0 alone.

        Raises:
            AutoparError: On all ranks, if `make` raises it; if it raises something else, that on
                rank 0, and a RuntimeFailure on the others.
            RuntimeFailure: If another process failed, nothing is heard, or it is too much.
        """
        if not self.first:
            parts, kind, text = json.loads(self._said_by_first())
            content = self._unpacked(self._exchanges, parts)
            self._meet()
            if kind:
                raise _error(kind, text)
            return content
        try:
            content = make()
            if len(content) > MOST:
                raise RuntimeFailure(f"{len(content)} bytes are too much to tell; {MOST} go")
        except BaseException as error:
            self.from_first(json.dumps([0, *_told(error)]))
            raise
        self.from_first(json.dumps([self._pack(content), "", ""]))
        return content

    def of_all(self, text: str) -> list[str]:
        """Returns the text of each process, by rank.

        Raises:
            RuntimeFailure: If another process failed, or nothing is heard.
        """
        found = self.to_first(text)
        told = self.made_by_first(lambda: json.dumps(found).encode())
        return list(json.loads(told))

    def to_first(self, text: str) -> list[str]:
        """Returns on rank 0 what each process gives, by rank; on the others nothing.

        Raises:
            RuntimeFailure: If another process failed, or nothing is heard.
        """
        key = self._next_key()
        if not self.first:
            self._set(f"{key}/{self.rank}", text)
        self._meet()
        if not self.first:
            return []
        others = [self._heard(f"{key}/{rank}", rank) for rank in range(1, self.size)]
        # Whoever has answered has read all that was said before.
        for old in (*self._read_by_all, *(f"{key}/{rank}" for rank in range(1, self.size))):
            with self._answered():
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

    def _said_by_first(self, text: str = "") -> str:
        key = self._next_key()
        if self.first:
            self._set(key, text)
            self._read_by_all.append(key)
        self._meet()
        return text if self.first else self._heard(key, 0)

    def _pack(self, content: bytes) -> int:
        """Sends the content of the next message in parts; returns how many there are."""
        packed = zlib.compress(content, 1)
        keys = [f"{self._exchanges + 1}.{at}" for at in range(-(-len(packed) // _PART))]
        for at, key in enumerate(keys):
            part: Any = packed[at * _PART : (at + 1) * _PART]
            self._set(key, part)
        self._read_by_all.extend(keys)
        return len(keys)

    def _unpacked(self, number: int, parts: int) -> bytes:
        with self._answered():
            packed = b"".join(self._store.get(f"{number}.{at}") for at in range(parts))
        if not packed:
            return b""
        return zlib.decompressobj().decompress(packed, MOST)

    def _next_key(self) -> str:
        self._exchanges += 1
        return str(self._exchanges)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Raises the failure of who serves the store if that ends within."""
        try:
            yield
        except DistNetworkError as error:
            raise self._lost() from error

    def _set(self, key: str, text: str) -> None:
        with self._answered():
            self._store.set(key, text)

    def _heard(self, key: str, rank: int) -> str:
        with self._answered():
            self._await(key, rank)
            return str(self._store.get(key).decode())

    def _await(self, key: str, rank: int) -> None:
        deadline = time.monotonic() + self._seconds
        pause = 0.001
        while not self._store.check([key]):
            if failure := self._failure():
                raise failure
            if time.monotonic() > deadline:
                raise RankFailure(rank, f"no word from it within {self._seconds:g} s", self.rank)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _told(error: BaseException) -> tuple[str, str]:
    """Returns what the other processes are to know of an error: its class and its text."""
    if not isinstance(error, AutoparError):
        text = f"rank 0 failed: {type(error).__name__}: {error}"
        return RuntimeFailure.__name__, text[:_PART]
    kind = next((each for each in _ERRORS if isinstance(error, each)), AutoparError)
    return kind.__name__, str(error)[:_PART]


def _error(kind: str, text: str) -> AutoparError:
    return {each.__name__: each for each in _ERRORS}.get(kind, AutoparError)(text)
