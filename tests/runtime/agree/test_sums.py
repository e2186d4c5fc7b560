"""Sums of a few numbers over all ranks: in shared memory; and what those learn who wait in vain."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from autopar.base.errors import RuntimeFailure
from autopar.runtime.agree import shared_lines
from autopar.runtime.agree.shared_lines import SharedLines
from autopar.runtime.agree.sums import GroupSums, HostSums, Numbers
from autopar.runtime.job.processes import Processes
from tests.runtime.job.real import run_ranks

TURNS = 300
FAR = 1 << 62


def lines_of(size: int) -> list[SharedLines]:
    """Returns the lines of ranks that are all in this process."""
    first = SharedLines.made(size)
    assert first is not None
    found = [SharedLines.found(first.address, rank, size) for rank in range(1, size)]
    first.close_file()
    return [first, *filter(None, found)]


def test_a_sum_is_there_when_all_have_written_their_lines_of_this_turn() -> None:
    lines = lines_of(3)
    for turn in range(1, 7):
        for rank, each in enumerate(lines):
            assert all(other.sum(turn) is None for other in lines)
            assert lines[0].missing(turn) == [*range(rank, 3)]
            each.write(turn, (rank, -rank, FAR, turn))
        expected = [3, 2**64 - 3, 3 * FAR, 3 * turn]
        assert [other.sum(turn) for other in lines] == [expected] * 3
        # Those of the turn before are read by who comes late.
        assert turn == 1 or lines[0].sum(turn - 1) == [3, 2**64 - 3, 3 * FAR, 3 * turn - 3]


def test_a_line_of_which_a_part_is_old_does_not_count() -> None:
    first, second = lines_of(2)
    for turn in (2, 4):
        first.write(turn, (1, 2, 3, 4))
    second.write(2, (5, 6, 7, 8))
    start = shared_lines._start(0, 1, 2)
    old = first._memory[start : start + 48]
    second.write(4, (9, 10, 11, 12))
    new = first._memory[start : start + 48]
    for at in range(6):
        first._memory[start + 8 * at : start + 8 * at + 8] = old[8 * at : 8 * at + 8]
        assert first.sum(4) is None
        first._memory[start : start + 48] = new
        assert first.sum(4) == [10, 12, 14, 16]


def test_memory_that_is_another_one_or_of_another_system_is_not_found() -> None:
    first = SharedLines.made(2)
    assert first is not None
    assert SharedLines.found(first.address, 1, 2) is not None
    assert SharedLines.found("", 1, 2) is None
    assert SharedLines.found(first.address.replace('["', '["x'), 1, 2) is None
    assert SharedLines.found(first.address[:-1] + "1]", 1, 2) is None
    assert SharedLines.found(first.address, 1, 200) is None
    first.close_file()
    first.close_file()
    assert SharedLines.found(first.address, 1, 2) is None
    second = SharedLines.made(2)
    assert second is not None
    second.leave()
    assert SharedLines.found(second.address, 1, 2) is None


class Counting(GroupSums):
    """Counts what it sums."""

    count = 0

    def start(self, numbers: Numbers) -> Callable[[], list[int]]:
        self.count += 1
        return super().start(numbers)


def sums_of(
    processes: Processes, seconds: float = 30.0, told: Callable[[], Any] = lambda: None
) -> HostSums:
    """Returns the sums of a process, whose process group is made."""
    store = TCPStore(
        processes.address,
        processes.port,
        processes.size,
        processes.rank == 0,
        timedelta(seconds=60),
    )
    rank, size = processes.rank, processes.size
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return HostSums(Counting(torch.device("cpu")), rank, size, store, seconds, told)


def many(processes: Processes, hidden: Sequence[int]) -> tuple[int, bool]:
    """Sums in many turns, where some ranks can't see the others' memory."""
    if processes.rank in hidden:
        shared_lines.system = lambda: "elsewhere"  # type: ignore[assignment]
    sums, right = sums_of(processes), True
    rank, size = processes.rank, processes.size
    for turn in range(TURNS):
        if (turn + rank) % 97 == 0:
            time.sleep(0.02)
        numbers = [rank, turn * FAR % (1 << 63), -rank, 1]
        found = sums.start(numbers)()
        expected = [sum(range(size)), size * numbers[1], -sum(range(size)), size]
        right &= [each % (1 << 64) for each in found] == [each % (1 << 64) for each in expected]
    dist.destroy_process_group()
    return sums._group.count, right


@pytest.mark.parametrize("size", [2, 5])
def test_from_the_third_turn_on_no_process_group_is_needed(size: int) -> None:
    assert run_ranks(size, many, ()) == [(2, True)] * size


@pytest.mark.parametrize("hidden", [(0,), (2,), (0, 1)])
def test_ranks_of_several_systems_sum_by_their_process_group(hidden: tuple[int, ...]) -> None:
    assert run_ranks(3, many, hidden) == [(TURNS, True)] * 3


def left_alone(processes: Processes, how: str) -> str:
    """Sums until the last rank is gone, or doesn't come; returns what the others learn."""
    told = RuntimeFailure("rank 2 failed: no memory") if how == "fails" else None
    sums = sums_of(processes, 0.5, lambda: told)
    for _ in range(4):
        sums.start([1, 2, 3, 4])()
    if processes.rank == 2:
        last = sums.start([1, 2, 3, 4]) if how == "comes and leaves" else None
        if how in ("leaves", "comes and leaves"):
            sums.leave()
        elif how == "ends":
            os._exit(3)
        time.sleep(1.5)
        return "" if last is None else str(last())
    try:
        return str(sums.start([1, 2, 3, 4])())
    except (RuntimeFailure, dist.DistNetworkError) as error:
        return str(error)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("leaves", "waiting for ranks 2: not there any more"),
        ("ends", "waiting for ranks 2: not there any more"),
        ("sleeps", "waiting for ranks 2: timed out after 0.5 s"),
        ("fails", "rank 2 failed: no memory"),
        ("comes and leaves", "[3, 6, 9, 12]"),
    ],
)
def test_who_waits_in_vain_learns_why(how: str, message: str) -> None:
    assert run_ranks(3, left_alone, how)[:2] == [message] * 2
