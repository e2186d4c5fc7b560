"""Processes that end because of another's failure say so, and not all of a thousand."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autopar.base.errors import InvalidInputError
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.failure.leaving import told as reason_for_others
from autopar.runtime.failure.telling import tell
from autopar.runtime.job.processes import Processes

HOST = 4
TOLD = "test_others_are_told_the_line_that_failed_and_not_that_of_the_block"


def told(error: Exception, capsys: pytest.CaptureFixture[str]) -> dict[int, str]:
    """Returns what the ranks of two hosts print."""
    found = {}
    for rank in range(2 * HOST):
        tell(error, Processes(rank, 2 * HOST, rank % HOST, HOST))
        if line := capsys.readouterr().err:
            found[rank] = line
    return found


def test_one_process_of_each_host_names_the_rank_that_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = told(RankFailure(2, "out of luck"), capsys)
    assert lines == {
        0: "error: rank 2 failed: out of luck; this process (rank 0) ends with it\n",
        2: "error: rank 2 failed: out of luck\n",
        4: "error: rank 2 failed: out of luck; this process (rank 4) ends with it\n",
    }
    assert [*told(RankFailure(4, "killed", teller=3), capsys)] == [0, 3, 4, 5]
    assert [*told(RankFailure(0, "full").with_alike([0, 1, 4]), capsys)] == [0, 2, 5]
    assert [*told(RankFailure(1, "full").with_alike(range(8)), capsys)] == [0, 1, 4]


def test_a_mistake_that_all_ranks_know_is_told_once_per_host(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = told(InvalidInputError("no such file"), capsys)
    assert lines == dict.fromkeys((0, 4), "error: no such file\n")


@contextmanager
def left(found: list[str]) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        found.append(reason_for_others(error))


def test_others_are_told_the_line_that_failed_and_not_that_of_the_block() -> None:
    found: list[str] = []
    with left(found):
        frame = inspect.currentframe()
        assert frame is not None
        line = frame.f_lineno + 1
        raise ValueError("out of luck")
    assert found == [f"ValueError: out of luck (at test_telling.py:{line} in {TOLD})"]
