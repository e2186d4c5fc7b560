"""Sums of a few numbers over all ranks, at any moment of a step.

A sum over a process group of gloo costs each rank 0.25 to 0.45 CPU-ms, however little is summed:
threads wake one another. That is more than 1% of a step of 30 CPU-ms. Ranks of one system write
their numbers into memory that they share instead, and read those of the others; by the end of a
step these have been there for long, and nobody waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from autopar.base.errors import RuntimeFailure
from autopar.runtime.agree.shared_lines import SharedLines
from autopar.runtime.job.siblings import has_ended
from autopar.runtime.ports.staging import moved

LOOK = 0.2
"""Seconds between looks at whether those who are waited for are still there."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 2e-5, 0.005

_MEMORY = "memory"
_FIRST_SHARED = 2
"""The first sum that needs no process group."""


Numbers = Sequence[int | Tensor]
"""As many as `NUMBERS`, of 64 bits with a sign; those that an accelerator alone knows, tensors."""


class Sums(Protocol):
    """What sums numbers over all ranks, which all start their sums in the same order."""

    def start(self, numbers: Numbers) -> Callable[[], list[int]]:
        """Starts to sum numbers, each modulo 2^64; returns what waits for the sums."""

    def leave(self) -> None:
        """Tells who waits for this rank that it starts no more."""


class GroupSums:
    """Sums by collectives of a process group.

    Args:
        group: The group; None for that of all ranks.
        device: Where it sends from.
    """

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None = None) -> None:
        self.device = device
        self.group = group

    def start(self, numbers: Numbers) -> Callable[[], list[int]]:
        """See `Sums`.

        Every rank starts it before what else it sends in this group. Where it is on an
        accelerator, the host waits for the sum alone, and not for what was started after it.
        """
        known = [0 if isinstance(each, Tensor) else each for each in numbers]
        vector = moved(torch.tensor(known), self.device)
        for at, each in enumerate(numbers):
            if isinstance(each, Tensor):
                vector[at] = each
        work = dist.all_reduce(vector, group=self.group, async_op=True)
        assert work is not None
        if vector.is_cpu:
            return lambda: (work.wait(), vector.tolist())[1]
        beside = torch.cuda.Stream(vector.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(beside):
            work.wait()
            host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
            host.copy_(vector, non_blocking=True)
            arrived = beside.record_event()
        vector.record_stream(beside)
        return lambda: (arrived.synchronize(), host.tolist())[1]

    def leave(self) -> None:
        """See `Sums`: the connections of the group end, which tells it."""


class HostSums:
    """Sums through shared memory, where all ranks are on one system; otherwise by a process group.

    Nobody waits for the memory: rank 0 offers it with the first sum, the others look for it before
    the second, which also adds up who hasn't found it, and the third is the first that needs no
    process group.

    Args:
        group: Sums by a process group, of numbers in main memory.
        rank, size: This process, and how many there are.
        store: Where the memory is offered, with keys that nobody else uses.
        seconds: For how long to wait for other ranks.
        failure: Returns the failure of another rank, if there is one.
    """

    def __init__(
        self,
        group: GroupSums,
        rank: int,
        size: int,
        store: Store,
        seconds: float,
        failure: Callable[[], RuntimeFailure | None],
    ) -> None:
        self.rank = rank
        self.size = size
        self._group = group
        self._store = store
        self._seconds = seconds
        self._failure = failure
        self._turn = 0
        self._lines: SharedLines | None = None
        self._missing: Callable[[], int] | None = None

    def start(self, numbers: Numbers) -> Callable[[], list[int]]:
        """See `Sums`."""
        turn, self._turn = self._turn, self._turn + 1
        if turn < _FIRST_SHARED:
            return self._first(numbers) if turn == 0 else self._second(numbers)
        if turn == _FIRST_SHARED:
            self._decide()
        if self._lines is None:
            return self._group.start(numbers)
        lines = self._lines
        lines.write(turn, [*map(int, numbers)])
        return lambda: self._awaited(lines, turn)

    def leave(self) -> None:
        """See `Sums`."""
        if self._lines is not None:
            self._lines.leave()

    def _first(self, numbers: Numbers) -> Callable[[], list[int]]:
        if self.rank == 0:
            self._lines = SharedLines.made(self.size)
            self._store.set(_MEMORY, "" if self._lines is None else self._lines.address)
        return self._group.start(numbers)

    def _second(self, numbers: Numbers) -> Callable[[], list[int]]:
        if self.rank:
            address = self._store.get(_MEMORY).decode()
            self._lines = SharedLines.found(address, self.rank, self.size)
        read = self._group.start([*numbers, int(self._lines is None)])
        self._missing = lambda: read()[-1]
        return lambda: read()[:-1]

    def _decide(self) -> None:
        if self._lines is not None:
            self._lines.close_file()
        # What reads a sum keeps the connections of its group.
        missing, self._missing = self._missing, None
        if missing is None or missing():
            self._lines = None

    def _awaited(self, lines: SharedLines, turn: int) -> list[int]:
        """Returns a sum when all ranks have started it.

        Raises:
            RuntimeFailure: If another rank failed meanwhile.
            DistNetworkError: If one has ended or left, or doesn't come in time.
        """
        if (found := lines.sum(turn)) is not None:
            return found
        began = looked = time.monotonic()
        while (found := lines.sum(turn)) is None:
            now = time.monotonic()
            if now - looked > LOOK:
                looked = now
                self._look(lines, turn, now - began)
            # Who has waited for long may as well wait a little longer.
            time.sleep(min(max((now - began) / 10, _SHORTEST_PAUSE), _LONGEST_PAUSE))
        return found

    def _look(self, lines: SharedLines, turn: int, waited: float) -> None:
        if failure := self._failure():
            raise failure
        late = lines.missing(turn)
        if gone := [rank for rank in late if lines.has_left(rank) or has_ended(lines.owner(rank))]:
            # It may have come before it went.
            _refuse(set(gone) & set(lines.missing(turn)), "not there any more")
        if waited > self._seconds:
            _refuse(late, f"timed out after {self._seconds:g} s")


def _refuse(ranks: Collection[int], why: str) -> None:
    if ranks:
        names = ", ".join(map(str, sorted(ranks)))
        raise dist.DistNetworkError(f"waiting for ranks {names}: {why}")
