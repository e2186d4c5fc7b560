"""Supervision of one rank: its failure becomes everybody's, and theirs its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from multiprocessing.util import Finalize
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from autopar.base.errors import AutoparError
from autopar.ir.collectives import is_collective
from autopar.ir.program import Op
from autopar.runtime.agree.sums import GroupSums, HostSums, Sums
from autopar.runtime.execute.describe import describe_failure, reason_of
from autopar.runtime.execute.locate import failing_op
from autopar.runtime.failure.beats import Place
from autopar.runtime.failure.blame import ANSWER, gone, inquire_lost, late
from autopar.runtime.failure.failure import FailureBoard, RankFailure
from autopar.runtime.failure.guard import Guard
from autopar.runtime.failure.leaving import why_leaving
from autopar.runtime.failure.standing import Standing
from autopar.runtime.failure.telling import tell
from autopar.runtime.failure.watch import Watch
from autopar.runtime.failure.whereabouts import Whereabouts
from autopar.runtime.job.limited import Vain, within
from autopar.runtime.job.patience import Patience
from autopar.runtime.job.processes import Processes
from autopar.runtime.job.siblings import end_if_stopped

Reached = TypeVar("Reached")

CLOSING = 2.0
"""Seconds that the process that serves the store gives the others to end too."""


ALIKE = 1.0
"""Seconds that a rank whose op failed looks for others that fail of the same."""


class Supervisor:
    """Connects a rank to the store and turns what happens to it into messages.

    Each one has keys of its own. Ranks open them in the same order, and each counts its own in the
    store; so a number means the same opening on all ranks, also after one that failed.

    Args:
        processes: Who this process is.
        store: A connection to the store of all processes, with keys of the job's own.
        timeout: For how long collectives wait.
        start: What is left of the time that the start waits.
        members: Returns the ranks of the group of this name that a rank is in.
        on_failure: Called, on a thread, if another rank failed and this one is stuck; by default
            tells the failure (see `tell`) and ends the process: nothing else frees a thread that
            waits in a collective of gloo.

    Attributes:
        standing: Whether calls can be carried out.
        name: What no other opening of the job is called.
        store: The store, with keys of this opening's own.
        whereabouts: Where the rank is.
    """

    def __init__(
        self,
        processes: Processes,
        store: Store,
        timeout: timedelta,
        start: Patience,
        members: Callable[[int, str], Collection[int]],
        on_failure: Callable[[RankFailure], None] | None = None,
    ) -> None:
        self.processes = processes
        self.timeout = timeout
        self.members = members
        self.standing = Standing()
        self.whereabouts = Whereabouts()
        self._store_gone = False
        self._waited = False
        self._failure: RankFailure | None = None
        self._watch: Watch | None = None
        self._guard: Guard | None = None
        end = on_failure or self._print_and_exit
        if processes.size == 1:
            self._begin(store)
            return
        self._watch = self._begun(store, start, end)
        self._watch.start()
        if self._serves:
            _forget_ended()
            # Behind the closing of what wasn't closed before. Processes that multiprocessing starts
            # end without Python's own exit handlers.
            self._ending = Finalize(None, _end_store, (processes, self.board), exitpriority=0)
            _endings().append((processes, self.board, self._ending))
        limits = (timeout.total_seconds(), start.seconds)
        self._guard = Guard(self._watch, self.whereabouts, *limits, end, self._silent_store)
        self._guard.start()

    def _begin(self, store: Store) -> None:
        """Finds the place of this opening in the store."""
        rank = self.processes.rank
        number = store.add(f"openings/{rank}", 1)
        self.name = f"{self.processes.prefix}/{number}"
        store.set_timeout(self.timeout)
        self.store = PrefixStore(str(number), store)
        self.board = FailureBoard(self.store, rank)

    def _begun(self, store: Store, start: Patience, end: Callable[[RankFailure], None]) -> Watch:
        """Begins, though who serves the store may have ended meanwhile, or been stopped."""
        return self._reached(start, lambda: self._watching(store, start.seconds, end))

    def _reached(self, patience: Patience, function: Callable[[], Reached]) -> Reached:
        """Returns what a function returns that connects to the store.

        Torch tries again for as long as its time-out where nobody answers.

        Raises:
            RankFailure: If who serves the store has ended or was stopped.
        """
        try:
            with self.processes.line() as is_cut:
                return patience.within(function, is_cut)
        except TimeoutError as error:
            raise self._silent_store() from error
        except (RuntimeError, Vain) as error:
            raise self.lost_store() from error

    def _watching(
        self, store: Store, start_seconds: float, end: Callable[[RankFailure], None]
    ) -> Watch:
        """Begins; returns what will watch over the rank."""
        self._begin(store)
        board = FailureBoard(_clone(self.store), self.processes.rank)
        lost, size = self.lost_store, self.processes.size
        return Watch(board, self.whereabouts, end, lost, size, start_seconds)

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Raises the first failure of any rank in place of what happens within.

        A user's mistake that all ranks find alike is raised as it is. A process whose main thread
        is not within is left alone.

        Raises:
            InvalidInputError: If the supervision has been closed.
            RuntimeFailure: If a rank failed, within or earlier.
        """
        # Two frames up, behind that of the context manager, is who says `with`.
        with self.whereabouts.inside(sys._getframe(2)):
            self.standing.check()
            try:
                yield
            except Exception as error:
                failure = self._failed(error)
                if isinstance(error, AutoparError) and str(error) in (failure.reason, str(failure)):
                    raise
                raise failure from error

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Raises the failure of who is to blame if communication within fails.

        Other errors within are left alone: those for whom it is made to settle are told otherwise.
        """
        with self.whereabouts.inside(sys._getframe(2)):
            self.standing.check()
            try:
                yield
            except RuntimeError as error:
                if not _is_communication(error):
                    raise
                raise self._failed(error) from error

    def connection(self) -> Store:
        """Returns another connection to the store, for keys of this opening.

        Raises:
            RankFailure: If who serves the store has ended or was stopped.
        """
        patience = Patience(self.timeout.total_seconds())
        return self._reached(patience, lambda: _clone(self.store))

    def sums(
        self, device: torch.device, group: dist.ProcessGroup | None = None, name: str = "sums"
    ) -> Sums:
        """Returns what sums a few numbers over all ranks.

        Args:
            device: Where they are.
            group: A process group of all ranks that sends from there; by default torch's own.
            name: What no other sums of this opening are called.
        """
        found = GroupSums(device, group)
        if device.type != "cpu":
            return found
        store, seconds = PrefixStore(name, self.store), self.timeout.total_seconds()
        processes = self.processes
        return HostSums(found, processes.rank, processes.size, store, seconds, self.board.first)

    def leave(self) -> None:
        """Tells the others that this rank makes no further calls, and why, as far as it is known.

        To be called before its connections end: who waits for it then knows whom to blame.
        """
        self.standing.close()
        self._stop_watching()

    def close(self) -> None:
        """Ends the supervision; the process that serves the store waits for the others."""
        self.leave()

    @property
    def watches(self) -> bool:
        """Whether it still watches over the rank: until it is closed, or a rank has failed."""
        return self._watch is not None

    def raise_failure_of_others(self) -> None:
        """Raises the failure of another rank, if there was one since this one looked last."""
        failure = self.board.first() if self.processes.size > 1 else None
        if failure is not None:
            raise failure

    def _failed(self, error: Exception) -> RankFailure:
        """Tells all ranks of an error; returns the first failure of any."""
        if self._failure is not None:
            # Calls within calls fail of the same, and the store may not answer a second time.
            return self._failure
        failure = self._failure = self._report(error)
        if self._watch is not None:
            self._watch.leave_alone()
        failure = self._failure = self._with_those_alike(failure, error)
        # Who serves the store may end from here on.
        self._stop_watching()
        self.standing.fail(failure, self.whereabouts.call)
        self._await_others()
        return failure

    def _report(self, error: Exception) -> RankFailure:
        if self.processes.size == 1:
            return self._failure_of(error)
        try:
            if not isinstance(error, AutoparError):
                within(ANSWER, self.board.alarms)
            mine = self._failure_of(error)
            if mine.rank == self.processes.rank and failing_op(error) is not None:
                self.board.note(mine.reason)
            first = self.board.report(mine)
            for rank in first.silent:
                end_if_stopped(rank, self.board.beat(rank))
            return first
        except TimeoutError:
            self._store_gone = True
            return self._silent_store()
        except RuntimeError:
            self._store_gone = True
            return self.lost_store()

    def _with_those_alike(self, failure: RankFailure, error: Exception) -> RankFailure:
        """Returns a failure of an op of this rank as that of all in which the same op failed.

        What all of them compute of the same, as of a label that is out of range, fails on each.
        """
        op = failing_op(error)
        if op is None or self._store_gone or describe_failure(op, error) != failure.reason:
            return failure
        with suppress(RuntimeError, TimeoutError):
            size = self.processes.size
            ranks = within(ANSWER, lambda: self.board.alike(failure.reason, size, ALIKE))
            if len(ranks) > 1:
                return failure.with_alike(ranks)
        return failure

    def _failure_of(self, error: Exception) -> RankFailure:
        rank = self.processes.rank
        if isinstance(error, RankFailure):
            return error
        if isinstance(error, AutoparError):
            return RankFailure(rank, str(error))
        op = failing_op(error)
        mine = reason_of(error) if op is None else describe_failure(op, error)
        waited = _is_communication(error) if op is None else is_collective(op.kind)
        if self.processes.size == 1 or not waited:
            return RankFailure(rank, mine)
        self.whereabouts.timed_out = _is_timeout(error)
        self.whereabouts.failed_at = self._place_of(op)
        found = self.board.first()
        if found is None and not self.board.may_inquire():
            found = self.board.first(2 * ANSWER)
        return found or self._blamed(op, error) or RankFailure(rank, mine)

    def _blamed(self, op: Op | None, error: Exception) -> RankFailure | None:
        """Returns the failure of who is to blame that a rank waited in vain, if that is known."""
        rank, place = self.processes.rank, self._place_of(op)
        everybody = range(self.processes.size)
        waited_for = everybody if op is None else self.members(rank, place.group)
        found = inquire_lost(self.board, place, waited_for, self.members, _is_timeout(error))
        if found.timed_out:
            return late(found, place, self.timeout.total_seconds(), rank)
        return gone(found, place, rank)

    def _place_of(self, op: Op | None) -> Place:
        return self.whereabouts.meeting() if op is None else self.whereabouts.at(op)

    def lost_store(self) -> RankFailure:
        """Returns the failure of who serves the store: rank 0, unless a launcher does."""
        return self.processes.lost_store()

    def _silent_store(self) -> RankFailure:
        """Returns the failure of who serves the store and doesn't answer; ends it if it can."""
        if self.processes.served:
            mine = "the launcher's store doesn't answer (is its host there?)"
            return RankFailure(self.processes.rank, mine)
        end_if_stopped(0, None)
        reason = "its process doesn't answer, nor does the store that it serves (stopped?)"
        return RankFailure(0, reason, self.processes.rank)

    def _stop_watching(self) -> None:
        if self._watch is None:
            return
        watch, self._watch = self._watch, None
        if self._guard is not None:
            self._guard.stop()
        last = Place("closed", why_leaving(), step=self.whereabouts.steps)
        watch.stop(last, 1.0 if self._store_gone else 5.0)

    def _await_others(self) -> None:
        """Waits, once, for those to whom this process serves the store."""
        if self._waited or not self._serves:
            return
        self._waited = True
        left = True
        with suppress(RuntimeError):
            self.board.announce_close()
            left = self.board.await_left(self.processes.size, CLOSING)
        if left or self._failure is not None:
            self._ending.cancel()

    @property
    def _serves(self) -> bool:
        """Whether other processes need the store that this one serves."""
        return self.processes.size > 1 and not (self.processes.rank or self.processes.served)

    def _print_and_exit(self, failure: RankFailure) -> None:
        if (watch := self._watch) is not None:
            # Who has failed may have caught the error: it says nothing then.
            with suppress(RuntimeError, TimeoutError):
                size = self.processes.size
                ranks = within(ANSWER, lambda: watch.board.alike(failure.reason, size, 0.0))
                failure = failure.with_alike(ranks) if len(ranks) > 1 else failure
        tell(failure, self.processes)
        os._exit(1)


def _end_store(processes: Processes, board: FailureBoard) -> None:
    """Lets the others know that the store ends, unless it did with a group of the user's own."""
    with processes.line() as is_cut:
        if not is_cut():
            board.end(processes.size, CLOSING)


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


def _clone(store: Store) -> Store:
    """Returns another connection to a store; torch's stubs don't know of it."""
    return store.clone()  # type: ignore[attr-defined, no-any-return]


def _is_communication(error: Exception) -> bool:
    """Returns whether an error says that another rank couldn't be reached."""
    text = str(error).lower()
    named = any(name in text for name in ("gloo", "nccl", "process group"))
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and named)


def _is_timeout(error: Exception) -> bool:
    """Returns whether an error says that nobody came.

    Where several collectives of a group wait, gloo says "Timed out" of the first whose time is up,
    and "Application timeout caused pair closure" of those that wait beside it.
    """
    text = str(error).lower()
    return "timed out" in text or "application timeout" in text
