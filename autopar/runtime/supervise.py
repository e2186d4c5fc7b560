"""Supervision of one rank: its failure becomes everybody's, and theirs its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

from autopar.ir.errors import AutoparError
from autopar.ir.program import Op
from autopar.runtime.describe import describe_failure, describe_op, reason_of
from autopar.runtime.failure import FailureBoard, RankFailure, Watch
from autopar.runtime.locate import failing_op
from autopar.runtime.processes import Processes

GRACE = 1.0
"""Seconds that a rank that lost the others gives them to say why."""

NO_OP = "a call other than step"
"""Where a rank is that waits outside a program: values are put together, or a state is saved."""

SAME_CALLS = "every rank makes the same calls (step, fetched, state_dict, ...) in the same order"


class Supervisor:
    """Connects a rank to the store and turns what happens to it into messages.

    Args:
        processes: Who this process is.
        timeout: For how long collectives wait.
        members: Returns the ranks of a group that this rank is in.
        on_failure: Called, on a thread, if another rank failed and this one is stuck; by default
            ends the process, and prints the failure on rank 0: nothing else frees a thread that
            waits in a collective of gloo.
    """

    def __init__(
        self,
        processes: Processes,
        timeout: timedelta,
        members: Callable[[str], Sequence[int]],
        on_failure: Callable[[RankFailure], None] | None = None,
    ) -> None:
        self.processes = processes
        self.timeout = timeout
        self.members = members
        self.store = processes.connect(timeout)
        self.board = FailureBoard(self.store, processes.rank)
        self._store_gone = False
        self._busy = False
        self._watch: Watch | None = None
        if processes.size > 1:
            second = processes.connect(timeout, first=False)
            watched = FailureBoard(second, processes.rank)
            self._watch = Watch(watched, on_failure or self._print_and_exit, lambda: self._busy)
            self._watch.start()

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Raises the first failure of any rank in place of what happens within.

        A user's mistake that all ranks find alike is raised as it is. A process whose main thread
        is not within is left alone.
        """
        self._busy = True
        try:
            yield
        except Exception as error:
            failure = self._report(error)
            self._leave("seen")
            if isinstance(error, AutoparError) and str(error) == failure.reason:
                raise
            raise failure from error
        finally:
            self._busy = False

    def close(self) -> None:
        """Ends the supervision; the process that serves the store waits for the others."""
        self._leave("done")

    def raise_failure_of_others(self) -> None:
        """Raises the failure of another rank, if there was one since this one looked last."""
        failure = self.board.first() if self.processes.size > 1 else None
        if failure is not None:
            raise failure

    def _report(self, error: Exception) -> RankFailure:
        try:
            reason = self._reason(error)
            return reason if isinstance(reason, RankFailure) else self.board.report(reason)
        except RuntimeError:
            # Without a launcher that serves it, the store ends with rank 0.
            self._store_gone = True
            return RankFailure(0, "it ended without a word, and the store with it")

    def _reason(self, error: Exception) -> str | RankFailure:
        if isinstance(error, AutoparError):
            return str(error)
        op = failing_op(error)
        mine = reason_of(error) if op is None else describe_failure(op, error)
        if self.processes.size == 1 or (op is not None and not op.kind.startswith("comm.")):
            return mine
        return (
            self.board.first(GRACE) or self._lost(op, error) or self.board.first(2 * GRACE) or mine
        )

    def _lost(self, op: Op | None, error: Exception) -> str:
        """Returns who is to blame, of ranks that say nothing themselves; empty if unknown."""
        place = NO_OP if op is None else describe_op(op)
        members = range(self.processes.size) if op is None else self.members(str(op.arg("group")))
        if _is_timeout(error):
            reason = self._silence(members, place)
        elif dead := self.board.dead(members, GRACE):
            reason = f"lost the connection to {_ranks(dead)}, gone without a word (killed?)"
        else:
            return ""
        return reason if op is None else f"{place}: {reason}"

    def _silence(self, members: Sequence[int], place: str) -> str:
        """Returns for how long and for whom this rank waited, or that all wait for one another."""
        within = f"no answer within {self.timeout.total_seconds():g} s"
        stuck = self.board.stuck(members, place, GRACE)
        silent = [member for member in members if member not in stuck]
        if not silent and len(set(stuck.values())) == 1:
            return f"{within}, though all of {_ranks(members)} wait: is the network down?"
        if silent:
            found = f"{within} from {_ranks(silent)}"
        else:
            waiting = ", ".join(f"rank {rank} waits in {at}" for rank, at in stuck.items())
            found = f"{within}: {waiting}"
        return f"{found}; {SAME_CALLS}" if NO_OP in stuck.values() else found

    def _leave(self, event: str) -> None:
        if self._watch is None:
            return
        self._watch.stop()
        self._watch = None
        if self._store_gone:
            return
        with suppress(RuntimeError):
            self.board.count(event)
            if self.processes.rank == 0 and not self.processes.served:
                self.board.await_count(event, self.processes.size, GRACE)

    def _print_and_exit(self, failure: RankFailure) -> None:
        if self.processes.rank == 0:
            print(f"error: {failure}", file=sys.stderr, flush=True)
        os._exit(1)


def _is_timeout(error: Exception) -> bool:
    return "timed out" in str(error).lower()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
