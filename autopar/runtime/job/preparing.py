"""What rank 0 prepares for all ranks before they open a session, as a build, while they wait."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from autopar.base.errors import AutoparError, RuntimeFailure
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.failure.supervise import Supervisor
from autopar.runtime.job.messages import Messages
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, Patience
from autopar.runtime.job.processes import Processes


def prepare_on_first(
    prepare: Callable[[], None],
    processes: Processes,
    seconds: float,
    *,
    start_timeout: float = DEFAULT_START_TIMEOUT,
    on_failure: Callable[[RankFailure], None] | None = None,
) -> None:
    """Returns on all ranks when rank 0 has prepared something.

    They are watched over meanwhile as in a session: whoever fails, all of them know of it.

    Args:
        prepare: Called on rank 0 alone.
        processes: Who this process is.
        seconds: For how long the others wait.
        start_timeout: For how long they wait for the store to appear.
        on_failure: See `Supervisor`.

    Raises:
        AutoparError: On rank 0, if `prepare` raises it.
        RuntimeFailure: On all other ranks then; on all of them if it raises something else, or
            another rank fails, or rank 0 takes too long.
    """
    if processes.size == 1:
        prepare()
        return
    start = Patience(start_timeout)
    store = processes.connect(start)
    everybody = range(processes.size)
    supervisor = Supervisor(
        processes,
        store,
        timeout=timedelta(seconds=seconds),
        start=start,
        members=lambda rank, group: everybody,
        on_failure=on_failure,
    )
    try:
        with supervisor.reported():
            if processes.rank == 0:
                _understood(prepare)
            messages = Messages(
                supervisor.store,
                processes.rank,
                processes.size,
                seconds,
                supervisor.board.first,
                lost=supervisor.processes.lost_store,
            )
            messages.from_first("prepared")
    finally:
        supervisor.close()


def _understood(prepare: Callable[[], None]) -> None:
    """Makes what goes wrong something that other ranks can be told."""
    try:
        prepare()
    except AutoparError:
        raise
    # A script that ends itself would leave the others waiting.
    except (Exception, SystemExit) as error:
        raise RuntimeFailure(f"{type(error).__name__}: {error}") from error
