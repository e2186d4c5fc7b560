"""The started processes: who a process is among them, and the store over which they meet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from autopar.base.errors import RuntimeFailure
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.job.limited import Vain, never
from autopar.runtime.job.patience import Patience
from autopar.runtime.job.reaching import Line, reach
from autopar.runtime.job.serving import serve_store
from autopar.runtime.job.siblings import end_if_stopped


@dataclass(frozen=True)
class Processes:
    """What torch's launchers tell a process in its environment.

    Attributes:
        rank: Its number in the job.
        size: Number of processes of the job.
        local_rank: Its number on its host.
        local_size: Number of processes on its host.
        address, port: Where the store is served; empty for a job of one process.
        served: Whether the launcher serves the store; otherwise rank 0 does.
        prefix: Keeps the keys of different jobs and restarts apart.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    address: str = ""
    port: int = 0
    served: bool = False
    prefix: str = "autopar"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Processes:
        """Returns what `torchrun` set; a process that it didn't start is the only one.

        Raises:
            RuntimeFailure: If the variables are incomplete or not numbers.
        """
        env = os.environ if environment is None else environment
        if "RANK" not in env:
            return cls()
        try:
            rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
            served = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            job = env.get("TORCHELASTIC_RUN_ID", "none")
            # The launcher's store outlives restarts. Otherwise a number of them would part ranks:
            # each host counts its own, and one that has come later has fewer.
            restart = f"/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}" if served else ""
            return cls(
                rank,
                size,
                int(env.get("LOCAL_RANK", rank)),
                int(env.get("LOCAL_WORLD_SIZE", size)),
                env["MASTER_ADDR"],
                int(env["MASTER_PORT"]),
                served,
                f"autopar/{job}{restart}",
            )
        except (KeyError, ValueError) as error:
            raise RuntimeFailure(
                f"RANK is set but the launcher's other variables are not right ({error});"
                " start the ranks with torchrun"
            ) from error

    @property
    def local(self) -> bool:
        """Whether all processes are on one host."""
        return self.local_size == self.size

    def connect(self, patience: Patience) -> Store:
        """Returns a connection to the store of all processes, with keys of the job's own.

        Rank 0 serves it, on the interface of the job's address alone, unless the launcher or a
        process group of the user's own does.

        Args:
            patience: For how long to wait for the store to appear.

        Raises:
            RuntimeFailure: If there is no answer, or there won't be any more.
        """
        if self.size == 1 and not self.address:
            return HashStore()
        try:
            if self.rank == 0 and not self.served:
                serve_store(self.address, self.port, self.local)
            with reach(self.address, self.port, patience) as line:
                # Where the server's process was stopped, the system still takes connections for it.
                store = patience.within(lambda: self._client(patience.left), line.is_cut)
        except Vain as error:
            raise self.lost_store() from error
        except (RuntimeError, ValueError, OSError) as error:
            raise self._unreachable(error, patience) from error
        return PrefixStore(self.prefix, store)

    def line(self) -> AbstractContextManager[Callable[[], bool]]:
        """Tells, within a block, whether who serves the store has ended, where that is known."""
        return self._line() if self.address else nullcontext(never)

    @contextmanager
    def _line(self) -> Iterator[Callable[[], bool]]:
        try:
            line = Line(self.address, self.port)
        except TimeoutError:
            # A lost packet or a machine that is short of time: nothing says that it has ended.
            yield never
            return
        except OSError:
            yield lambda: True
            return
        with line:
            yield line.is_cut

    def lost_store(self) -> RankFailure:
        """Returns the failure of who serves the store: rank 0, unless a launcher does."""
        if self.served:
            mine = "the launcher's store is gone, and the launcher with it (killed?)"
            return RankFailure(self.rank, mine)
        reason = "it ended without a word (killed?), and the store with it"
        return RankFailure(0, reason, self.rank)

    def silent_store(self) -> RankFailure:
        """Returns the failure of who serves the store and doesn't answer; ends it if it can."""
        if self.served:
            return RankFailure(
                self.rank, "the launcher's store doesn't answer (is its host there?)"
            )
        end_if_stopped(0, None)
        reason = "its process doesn't answer, nor does the store that it serves (stopped?)"
        return RankFailure(0, reason, self.rank)

    def _unreachable(self, error: Exception, patience: Patience) -> RuntimeFailure:
        """Returns why the store can't be reached, and ends who serves it if it was stopped."""
        what = f"the store at {self.address}:{self.port}"
        if self.served or self.rank == 0:
            why = str(error).splitlines()[0]
            return RuntimeFailure(f"rank {self.rank} can't reach {what}: {why}")
        end_if_stopped(0, None)
        return RankFailure(
            0,
            f"rank {self.rank} can't reach {what}, which it serves, within {patience.seconds:g} s;"
            " start it too, with the same MASTER_ADDR and MASTER_PORT, look at what it says if it"
            f" was, and {patience.advice} if it takes longer",
            self.rank,
        )

    def _client(self, seconds: float) -> Store:
        return TCPStore(
            self.address,
            self.port,
            is_master=False,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
        )
