"""What ranks that are watched over tell one another, on connections of their own."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.distributed_c10d import PrefixStore

from autopar.runtime.failure.failure import FailureBoard
from autopar.runtime.failure.supervise import Supervisor
from autopar.runtime.job.messages import Messages

PATIENCE = 3.0
"""Seconds that a text is waited for beyond the time-out: who waits in a collective knows for whom.
"""


def connected(supervisor: Supervisor, meet: Callable[[], object]) -> Messages:
    """Connects a rank to the others for short texts; all ranks connect in one order.

    Whoever waits for a text notices that another rank has failed, or the store is gone.

    Args:
        supervisor: Who watches over the rank.
        meet: See `Messages`.

    Raises:
        RankFailure: If who serves the store has ended or was stopped.
    """
    store, rank = supervisor.connection(), supervisor.processes.rank
    # All ranks connect in one order, so a number means the same on all of them.
    number = store.add(f"messages/{rank}", 1)
    return Messages(
        PrefixStore(f"messages/{number}", store),
        rank,
        supervisor.processes.size,
        supervisor.timeout.total_seconds() + PATIENCE,
        FailureBoard(store, rank).first,
        meet,
        supervisor.processes.lost_store,
    )
