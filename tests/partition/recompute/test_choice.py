"""The choice of a plan by a limit, where plans take more or less than they seem to."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import pytest

from autopar.partition.recompute import choice as module
from autopar.partition.recompute.choice import Choice
from autopar.partition.recompute.plan import Plan
from autopar.partition.recompute.tape import Tape
from autopar.partition.recompute.way import NOTHING, Point, Way

MOST = 1_000_000
PLANS = 60


@dataclass(frozen=True)
class Measured:
    """Stands for a tape: plans, and what measuring them says."""

    plans: list[Plan]
    points: Mapping[Way, Point]


class Planner:
    def __init__(self, tape: Measured, learned: None) -> None:
        self.plans = tape.plans

    def plan(self, limit: int) -> Plan | None:
        fitting = (plan for plan in self.plans if plan.peak_bytes <= limit)
        return min(fitting, key=lambda plan: plan.seconds, default=None)


def drawn(seed: int) -> Measured:
    """Returns plans that may hold 3% more or less than they seem to, and take longer or less."""
    chance = random.Random(seed)
    peaks = [chance.randint(MOST // 2, MOST) for _ in range(PLANS)]
    plans = [
        Plan(Way(frozenset({number})), peak, (MOST - peak) / MOST * chance.uniform(0.9, 1.1))
        for number, peak in enumerate(peaks)
    ]
    points = {
        plan.way: Point(
            plan.way,
            plan.seconds * chance.choice((0.9, 1, 1, 1 + chance.random())),
            int(plan.peak_bytes * chance.choice((1, 1, chance.uniform(0.97, 1.03)))),
        )
        for plan in plans
    }
    return Measured(plans, {NOTHING: Point(NOTHING, 0.0, MOST), **points})


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(tape: Measured, way: Way) -> Point:
        return tape.points[way]

    monkeypatch.setattr(module, "Planner", Planner)
    monkeypatch.setattr(module, "measure", measure)


def choice(seed: int) -> Choice:
    return Choice(cast(Tape, drawn(seed)))


LIMITS = range(MOST // 2, MOST + 1, MOST // 500)


@pytest.mark.parametrize("seed", range(50))
def test_more_memory_is_never_slower_nor_less_memory_larger(seed: int) -> None:
    found = choice(seed)
    points = [(limit, found.fastest(limit)) for limit in LIMITS]
    chosen = [point for limit, point in points if point is not None]
    assert len({point.way for point in chosen}) > 3
    assert all(point is None or point.peak_bytes <= limit for limit, point in points)
    assert all((point is not None) or limit < found.smallest.peak_bytes for limit, point in points)
    for less, more in pairwise(chosen):
        assert more.added_seconds <= less.added_seconds
        assert more.peak_bytes >= less.peak_bytes


@pytest.mark.parametrize("seed", range(5))
def test_what_was_asked_before_doesn_t_matter(seed: int) -> None:
    before = choice(seed)
    for limit in LIMITS[::-20]:
        assert before.fastest(limit) == choice(seed).fastest(limit)
