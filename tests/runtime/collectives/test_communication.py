"""Collectives of real processes against their definition, which the virtual mesh uses."""

from __future__ import annotations

import pytest

from tests.runtime.execute.targets import (
    collectives_of_torch,
    compare_captured,
    compare_collectives,
    stressed,
)
from tests.runtime.job.real import run_ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_gloo_agrees_with_the_definition(ranks: int) -> None:
    assert run_ranks(ranks, compare_collectives) == [[]] * ranks


NAMES = {"all_reduce", "all_to_all_single", "broadcast", "wait_tensor"}
"""Of torch's collectives on gloo. Its `all_gather_into_tensor` isn't among them: it corrupts the
heap, as do all that gloo has a long name for."""


def test_collectives_can_be_captured() -> None:
    assert run_ranks(2, compare_captured) == [([], _in_full(NAMES))] * 2


def test_no_collective_is_one_that_corrupts_the_heap() -> None:
    expected = _in_full(NAMES | {"all_gather_into_tensor_out", "all_reduce_"})
    assert run_ranks(2, collectives_of_torch) == [expected] * 2


@pytest.mark.faults
@pytest.mark.parametrize(("collective", "steps"), [("gather", 12000), ("all", 1000)])
def test_many_collectives_may_be_under_way(collective: str, steps: int) -> None:
    found = run_ranks(4, stressed, collective, steps)
    assert found == [8 * steps] * 4


def _in_full(names: set[str]) -> list[str]:
    return sorted(f"_c10d_functional.{name}.default" for name in names)
