"""The ranks that measure together: they meet, and all of them know if one fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore

from autopar.runtime.agree.handshake import meet
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.failure.supervise import Supervisor
from autopar.runtime.job.closing import Closing
from autopar.runtime.job.patience import Patience
from autopar.runtime.job.processes import Processes
from autopar.runtime.job.world import World


class Together(Closing):
    """This process among those that measure, in a process group that is made for it.

    Args:
        processes: Who it is.
        backend: `gloo` or `nccl`.
        timeout: For how long it waits for the others, at the start and in collectives.
        on_failure: See `Supervisor`.

    Raises:
        RuntimeFailure: If another one doesn't come, or fails.
    """

    def __init__(
        self,
        processes: Processes,
        backend: str,
        timeout: timedelta,
        on_failure: Callable[[RankFailure], None] | None = None,
    ) -> None:
        start = Patience(timeout.total_seconds(), "start them at the same time")
        store = processes.connect(start)
        everybody = range(processes.size)
        self.supervisor = Supervisor(
            processes, store, timeout, start, lambda rank, group: everybody, on_failure
        )
        self._world: World | None = None
        board, rank, size = self.supervisor.board, processes.rank, processes.size
        try:
            with self.reported():
                meet(board.store, "came", rank, size, start, board.first)
                groups = PrefixStore("world", self.supervisor.store)
                self._world = World(processes, backend, groups, timeout)
                meet(board.store, "joined", rank, size, start, board.first)
        except BaseException:
            self.close()
            raise

    def reported(self) -> AbstractContextManager[None]:
        """Makes an error within known to all ranks; raises the first one of any."""
        return self.supervisor.reported()

    def close(self) -> None:
        """Ends the process group."""
        self.supervisor.leave()
        if self._world is not None:
            self._world.close()
        self.supervisor.close()
