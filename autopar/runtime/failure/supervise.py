"""Supervision of one rank: its failure becomes everybody's, and theirs its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from autopar.base.errors import AutoparError
from autopar.runtime.agree.sums import GroupSums, HostSums, Sums
from autopar.runtime.failure.beats import Place
from autopar.runtime.failure.blame import ANSWER
from autopar.runtime.failure.failure import FailureBoard, RankFailure
from autopar.runtime.failure.guard import Guard
from autopar.runtime.failure.judging import Judging, is_communication
from autopar.runtime.failure.leaving import why_leaving
from autopar.runtime.failure.standing import Standing
from autopar.runtime.failure.store_end import StoreEnd
from autopar.runtime.failure.telling import tell
from autopar.runtime.failure.watch import Watch
from autopar.runtime.failure.whereabouts import Whereabouts
from autopar.runtime.job.limited import Vain, within
from autopar.runtime.job.patience import Patience
from autopar.runtime.job.processes import Processes

Reached = TypeVar("Reached")


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
        self._failure: RankFailure | None = None
        self._watch: Watch | None = None
        self._guard: Guard | None = None
        self._store_end: StoreEnd | None = None
        end = on_failure or self._print_and_exit
        if processes.size == 1:
            self._begin(store)
            return
        self._watch = self._begun(store, start, end)
        self._watch.start()
        if not (processes.rank or processes.served):
            self._store_end = StoreEnd(processes, self.board)
        limits = (timeout.total_seconds(), start.seconds)
        self._guard = Guard(self._watch, self.whereabouts, *limits, end, processes.silent_store)
        self._guard.start()

    def _begin(self, store: Store) -> None:
        """Finds the place of this opening in the store."""
        rank = self.processes.rank
        number = store.add(f"openings/{rank}", 1)
        self.name = f"{self.processes.prefix}/{number}"
        store.set_timeout(self.timeout)
        self.store = PrefixStore(str(number), store)
        self.board = board = FailureBoard(self.store, rank)
        self._judging = Judging(self.processes, board, self.whereabouts, self.members, self.timeout)

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
            raise self.processes.silent_store() from error
        except (RuntimeError, Vain) as error:
            raise self.processes.lost_store() from error

    def _watching(
        self, store: Store, start_seconds: float, end: Callable[[RankFailure], None]
    ) -> Watch:
        """Begins; returns what will watch over the rank."""
        self._begin(store)
        board = FailureBoard(_clone(self.store), self.processes.rank)
        lost, size = self.processes.lost_store, self.processes.size
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
                if not is_communication(error):
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
        failure = self._failure = self._judging.report(error)
        if self._watch is not None:
            self._watch.leave_alone()
        failure = self._failure = self._judging.with_those_alike(failure, error)
        # Who serves the store may end from here on.
        self._stop_watching()
        self.standing.fail(failure, self.whereabouts.call)
        if self._store_end is not None:
            self._store_end.await_others()
        return failure

    def _stop_watching(self) -> None:
        if self._watch is None:
            return
        watch, self._watch = self._watch, None
        if self._guard is not None:
            self._guard.stop()
        last = Place("closed", why_leaving(), step=self.whereabouts.steps)
        watch.stop(last, 1.0 if self._judging.store_gone else 5.0)

    def _print_and_exit(self, failure: RankFailure) -> None:
        if (watch := self._watch) is not None:
            # Who has failed may have caught the error: it says nothing then.
            with suppress(RuntimeError, TimeoutError):
                size = self.processes.size
                ranks = within(ANSWER, lambda: watch.board.alike(failure.reason, size, 0.0))
                failure = failure.with_alike(ranks) if len(ranks) > 1 else failure
        tell(failure, self.processes)
        os._exit(1)


def _clone(store: Store) -> Store:
    """Returns another connection to a store; torch's stubs don't know of it."""
    return store.clone()  # type: ignore[attr-defined, no-any-return]
