"""Schedules: complete, never deadlocked, with the bubbles and activations that are published."""

from __future__ import annotations

from itertools import product

import pytest

from autopar.partition.pipeline.schedules import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    WEIGHT,
    Clock,
    Orders,
    Pipeline,
    Task,
)


def seconds(task: Task) -> float:
    return 1.0


def kept(orders: Orders) -> list[int]:
    """Returns how many forward tasks each process has done at most whose backward it hasn't."""
    found = []
    for tasks in orders:
        held, most = 0, 0
        for task in tasks:
            held += {FORWARD: 1, BACKWARD: 0, WEIGHT: -1}[task.phase]
            most = max(most, held)
        found.append(most)
    return found


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_all_is_done_once_and_nobody_waits_for_ever(schedule: str) -> None:
    for processes, stages, microbatches in product(range(1, 6), range(1, 12), (1, 2, 3, 5, 8, 9)):
        pipeline = Pipeline(processes, stages, microbatches)
        orders = SCHEDULES[schedule](pipeline)
        wanted = set(
            map(
                Task._make, product(range(stages), range(microbatches), (FORWARD, BACKWARD, WEIGHT))
            )
        )
        assert sorted(task for tasks in orders for task in tasks) == sorted(wanted)
        for process, tasks in enumerate(orders):
            assert all(pipeline.process_of(task.stage) == process for task in tasks)
        assert Clock.of(pipeline, orders, seconds).end.keys() == wanted


BUBBLES = {
    # Narayanan et al., 2021, where a backward pass is one task; Qi et al., 2023.
    "1f1b": lambda forward, backward, weight: forward + backward,
    "gpipe": lambda forward, backward, weight: forward + backward,
    "zb-h1": lambda forward, backward, weight: forward + backward - weight,
}


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize(("processes", "rounds"), [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize("taken", [(1.0, 1.0, 1.0), (1.0, 2.0, 0.0)])
def test_bubbles_are_those_that_are_published(
    schedule: str, processes: int, rounds: int, taken: tuple[float, float, float]
) -> None:
    seconds = dict(zip((FORWARD, BACKWARD, WEIGHT), taken, strict=True))
    pipeline = Pipeline(processes, processes * rounds, 4 * processes)
    clock = Clock.of(pipeline, SCHEDULES[schedule](pipeline), lambda task: seconds[task.phase])
    ideal = 4 * processes * rounds * sum(taken)
    assert clock.seconds - ideal == (processes - 1) * BUBBLES[schedule](*taken)


def test_activations_that_are_kept() -> None:
    pipeline = Pipeline(4, 4, 8)
    assert kept(SCHEDULES["gpipe"](pipeline)) == [8, 8, 8, 8]
    assert kept(SCHEDULES["1f1b"](pipeline)) == [4, 3, 2, 1]
    assert kept(SCHEDULES["zb-h1"](pipeline)) == [4, 4, 4, 4]


def test_processes_that_wait_for_one_another_are_noticed() -> None:
    pipeline = Pipeline(2, 2, 1)
    first, second = SCHEDULES["1f1b"](pipeline)
    with pytest.raises(ValueError, match="all processes wait for one another"):
        Clock.of(pipeline, [first[::-1], second], seconds)
