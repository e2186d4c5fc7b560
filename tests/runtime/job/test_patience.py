"""One budget for all steps of a phase in which ranks wait for one another."""

from __future__ import annotations

import time

import pytest

from autopar.runtime.job.limited import Vain
from autopar.runtime.job.patience import LEAST, Patience


def test_what_one_step_has_waited_the_next_ones_lack() -> None:
    patience = Patience(30.0)
    for turn, _ in enumerate(patience.turns()):
        if turn:
            break
        time.sleep(0.2)
    assert patience.left <= 29.8
    patience.within(lambda: time.sleep(0.2))
    assert patience.left <= 29.6


def test_what_a_rank_does_by_itself_does_not_count() -> None:
    patience = Patience(30.0)
    time.sleep(0.2)
    assert patience.left == 30.0


def test_turns_end_with_the_time_and_later_steps_have_a_moment() -> None:
    patience = Patience(0.1)
    began = time.monotonic()
    turns = sum(1 for _ in patience.turns())
    assert turns > 1
    assert time.monotonic() - began >= 0.1
    assert patience.left == LEAST


def test_waiting_ends_where_it_is_in_vain() -> None:
    with pytest.raises(Vain):
        Patience(60.0).within(lambda: time.sleep(2.0), lambda: True)
    with pytest.raises(TimeoutError, match="no answer within 1 s"):
        Patience(0.1).within(lambda: time.sleep(3.0), lambda: False)
