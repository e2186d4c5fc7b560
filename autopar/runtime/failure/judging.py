"""Whose failure an error is, and what all ranks are told of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from autopar.base.errors import AutoparError
from autopar.ir.collectives import is_collective
from autopar.ir.program import Op
from autopar.runtime.execute.describe import describe_failure, reason_of
from autopar.runtime.execute.locate import failing_op
from autopar.runtime.failure.beats import Place
from autopar.runtime.failure.blame import ANSWER, gone, inquire_lost, late
from autopar.runtime.failure.failure import FailureBoard, RankFailure
from autopar.runtime.failure.whereabouts import Whereabouts
from autopar.runtime.job.limited import within
from autopar.runtime.job.processes import Processes
from autopar.runtime.job.siblings import end_if_stopped

ALIKE = 1.0
"""Seconds that a rank whose op failed looks for others that fail of the same."""


class Judging:
    """Finds who is to blame for the errors of one rank.

    Args:
        processes: Who this process is.
        board: Where ranks tell of failures.
        whereabouts: Where the rank is.
        members: Returns the ranks of the group of this name that a rank is in.
        timeout: For how long collectives wait.

    Attributes:
        store_gone: Whether the store didn't answer.
    """

    def __init__(
        self,
        processes: Processes,
        board: FailureBoard,
        whereabouts: Whereabouts,
        members: Callable[[int, str], Collection[int]],
        timeout: timedelta,
    ) -> None:
        self.processes = processes
        self.board = board
        self.whereabouts = whereabouts
        self.members = members
        self.timeout = timeout
        self.store_gone = False

    def report(self, error: Exception) -> RankFailure:
        """Tells all ranks of an error; returns the first failure of any."""
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
            self.store_gone = True
            return self.processes.silent_store()
        except RuntimeError:
            self.store_gone = True
            return self.processes.lost_store()

    def with_those_alike(self, failure: RankFailure, error: Exception) -> RankFailure:
        """Returns a failure of an op of this rank as that of all in which the same op failed.

        What all of them compute of the same, as of a label that is out of range, fails on each.
        """
        op = failing_op(error)
        if op is None or self.store_gone or describe_failure(op, error) != failure.reason:
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
        waited = is_communication(error) if op is None else is_collective(op.kind)
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


def is_communication(error: Exception) -> bool:
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
