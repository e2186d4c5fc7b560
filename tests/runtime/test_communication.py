"""Collectives of real processes against their definition, which the virtual mesh uses."""

from __future__ import annotations

import pytest

from tests.runtime.real import run_ranks
from tests.runtime.targets import compare_captured, compare_collectives


@pytest.mark.parametrize("ranks", [2, 3])
def test_gloo_agrees_with_the_definition(ranks: int) -> None:
    assert run_ranks(ranks, compare_collectives) == [[]] * ranks


def test_collectives_can_be_captured() -> None:
    assert run_ranks(2, compare_captured) == [[]] * 2
