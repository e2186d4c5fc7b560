"""The processes that other tests start."""

from __future__ import annotations

from tests.runtime.execute.targets import zeros
from tests.runtime.job.real import run_ranks


def test_a_result_may_be_larger_than_a_pipe() -> None:
    assert run_ranks(2, zeros, 1 << 20) == [bytes(1 << 20)] * 2
