"""What processes that end because a rank has failed say on standard error."""

from __future__ import annotations

import sys

from autopar.runtime.failure import RankFailure
from autopar.runtime.processes import Processes


def tell(error: Exception, processes: Processes) -> None:
    """Prints an error in one line, or that of another rank, with which this process ends.

    On each host one process does so, the first that hasn't failed itself, besides who failed and
    who noticed it: of a thousand processes one reads a few lines.

    Args:
        error: The error.
        processes: Who this process is.
    """
    rank, speaks = processes.rank, processes.local_rank == 0
    text = f"error: {error}"
    if isinstance(error, RankFailure):
        first = rank - processes.local_rank
        speaks = rank in (error.rank, error.teller, first + (error.rank == first))
        text += "" if rank == error.rank else f"; this process (rank {rank}) ends with it"
    if speaks:
        print(text, file=sys.stderr, flush=True)
