"""What processes that end because a rank has failed say on standard error."""

from __future__ import annotations

import sys

from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.job.processes import Processes


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
        first, failed = rank - processes.local_rank, {error.rank, *error.alike}
        here = range(first, first + processes.local_size)
        speaker = next((each for each in here if each not in failed), first)
        speaks = rank in (error.rank, error.teller, speaker)
        text += "" if rank in failed else f"; this process (rank {rank}) ends with it"
    if speaks:
        print(text, file=sys.stderr, flush=True)
