"""The end of the store: who serves it lets the others know, and waits for them."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from multiprocessing.util import Finalize

from autopar.runtime.failure.failure import FailureBoard
from autopar.runtime.job.processes import Processes

CLOSING = 2.0
"""Seconds that the process that serves the store gives the others to end too, if a rank failed."""

PATIENCE = 10.0
"""Seconds that it gives them otherwise: where the machine is short of time, they take more."""


class StoreEnd:
    """What the process that serves the store does at the end of an opening.

    Args:
        processes: Who this process is: that which serves the store.
        board: The opening's own, where ranks tell that they leave.
    """

    def __init__(self, processes: Processes, board: FailureBoard) -> None:
        self.processes = processes
        self.board = board
        self._waited = False
        _forget_ended()
        # Behind the closing of what wasn't closed before. Processes that multiprocessing starts
        # end without Python's own exit handlers.
        self._ending = Finalize(None, _end_store, (processes, board), exitpriority=0)
        _endings().append((processes, board, self._ending))

    def await_others(self) -> None:
        """Waits, once, for those to whom this process serves the store, where a rank has failed."""
        if self._waited:
            return
        self._waited = True
        with suppress(RuntimeError):
            self.board.announce_close()
            self.board.await_left(self.processes.size, CLOSING)
        self._ending.cancel()


def _end_store(processes: Processes, board: FailureBoard) -> None:
    """Lets the others know that the store ends, unless it did with a group of the user's own."""
    with processes.line() as is_cut:
        if not is_cut():
            board.end(processes.size, PATIENCE)


@cache
def _endings() -> list[tuple[Processes, FailureBoard, Finalize]]:
    """Returns what this process lets others know at its end: process-wide, as the store is."""
    return []


def _forget_ended() -> None:
    """Gives back the connections that were kept for openings which nobody uses any more."""
    known = _endings()
    for each in [*known]:
        processes, board, ending = each
        if not ending.still_active() or _is_over(processes, board):
            ending.cancel()
            known.remove(each)


def _is_over(processes: Processes, board: FailureBoard) -> bool:
    """Returns whether no rank needs the store any more, or it has ended."""
    with suppress(RuntimeError), processes.line() as is_cut:
        return is_cut() or board.await_left(processes.size, 0.0)
    return True
