"""What processes that end because a rank has failed say on standard error."""

from __future__ import annotations

import sys

from autopar.runtime.failure import RankFailure
from autopar.runtime.processes import Processes


def tell(error: Exception, processes: Processes) -> None:
    """Prints an error in one line, or that of another rank, with which this process ends.

    On each host one process does so, the first, besides who failed and who noticed it: of a
    thousand processes one reads a few lines.

    Args:
        error: The error.
        processes: Who this process is.
    """
    rank, text, involved = processes.rank, str(error), False
    if isinstance(error, RankFailure):
        involved = rank in (error.rank, error.teller)
        if rank != error.rank:
            text += f"; this process (rank {rank}) ends with it"
    if involved or processes.local_rank == 0:
        print(f"error: {text}", file=sys.stderr, flush=True)
