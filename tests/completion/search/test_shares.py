"""Shares of pairs of readers stay those of a mean, and go to those that cost most."""

from __future__ import annotations

import random

import pytest

from autopar.completion.search.network.shares import Shares


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_those_of_a_mean(seed: int) -> None:
    chance = random.Random(seed)
    shares = Shares()
    count = chance.randint(2, 8)
    pairs = shares.shares_of("value", chance.randint(1, count), count)
    for _ in range(50):
        shares.follow((pairs, at, chance.random()) for at in range(count))
        assert min(pairs) > 0
        assert sum(pairs) == pytest.approx(1.0, abs=1e-12)


def test_the_pair_that_costs_most_gets_most() -> None:
    shares = Shares()
    pairs = shares.shares_of("value", 2, 3)
    assert pairs[0] == pairs[1] > pairs[2]
    for _ in range(20):
        shares.follow((pairs, at, seconds) for at, seconds in enumerate((0.0, 1.0, 3.0)))
    assert max(pairs) == pairs[2] > 0.9


def test_values_that_are_alike_share_them() -> None:
    shares = Shares()
    assert shares.shares_of("value", 1, 2) is shares.shares_of("value", 1, 2)
    assert shares.shares_of("value", 1, 2) is not shares.shares_of("other", 1, 2)
