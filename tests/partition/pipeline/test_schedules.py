"""Schedules: complete, never deadlocked, with the bubbles and activations that are published."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from autopar.partition.pipeline.schedules import SCHEDULES
from autopar.partition.pipeline.tasks import BACKWARD, FORWARD, WEIGHT, Orders, Pipeline, Task
from autopar.partition.pipeline.timetable import Timetable


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
        pipeline = SCHEDULES[schedule].pipeline(processes, stages, microbatches)
        orders = SCHEDULES[schedule].order(pipeline)
        wanted = set(
            map(
                Task._make, product(range(stages), range(microbatches), (FORWARD, BACKWARD, WEIGHT))
            )
        )
        assert sorted(task for tasks in orders for task in tasks) == sorted(wanted)
        for process, tasks in enumerate(orders):
            assert all(pipeline.process_of(task.stage) == process for task in tasks)
        assert Timetable.of(pipeline, orders, seconds).end.keys() == wanted


BUBBLES = {
    # Narayanan et al., 2021, where a backward pass is one task; Qi et al., 2023.
    "1f1b": lambda forward, backward, weight: forward + backward,
    "gpipe": lambda forward, backward, weight: forward + backward,
    "zb-h1": lambda forward, backward, weight: forward + backward - weight,
}


@pytest.mark.parametrize("schedule", sorted(BUBBLES))
@pytest.mark.parametrize(("processes", "rounds"), [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize("taken", [(1.0, 1.0, 1.0), (1.0, 2.0, 0.0)])
def test_bubbles_are_those_that_are_published(
    schedule: str, processes: int, rounds: int, taken: tuple[float, float, float]
) -> None:
    seconds = dict(zip((FORWARD, BACKWARD, WEIGHT), taken, strict=True))
    pipeline = Pipeline(processes, processes * rounds, 4 * processes)
    timetable = Timetable.of(
        pipeline, SCHEDULES[schedule].order(pipeline), lambda task: seconds[task.phase]
    )
    ideal = 4 * processes * rounds * sum(taken)
    assert timetable.seconds - ideal == (processes - 1) * BUBBLES[schedule](*taken)


def test_activations_that_are_kept() -> None:
    pipeline = Pipeline(4, 4, 8)
    assert kept(SCHEDULES["gpipe"].order(pipeline)) == [8, 8, 8, 8]
    assert kept(SCHEDULES["1f1b"].order(pipeline)) == [4, 3, 2, 1]
    assert kept(SCHEDULES["zb-h1"].order(pipeline)) == [4, 4, 4, 4]


@pytest.mark.parametrize(("processes", "microbatches"), [(2, 8), (4, 8), (4, 16), (8, 32)])
def test_stages_in_a_v_wait_less_with_as_many_activations(
    processes: int, microbatches: int
) -> None:
    v, straight = (
        SCHEDULES[name].pipeline(processes, processes * SCHEDULES[name].turns, microbatches)
        for name in ("zb-v", "zb-h1")
    )
    orders = SCHEDULES["zb-v"].order(v)
    # Its stages are half as long.
    halves = Timetable.of(v, orders, seconds).seconds / 2
    whole = Timetable.of(straight, SCHEDULES["zb-h1"].order(straight), seconds).seconds
    assert halves < whole or processes == 2
    assert halves <= whole
    assert max(kept(orders)) <= 2 * processes


IN_V = {"zb-v": "ScheduleZBVZeroBubble", "dualpipe-v": "ScheduleDualPipeV"}
"""And torch's schedules that are the same."""


@pytest.mark.parametrize("schedule", sorted(IN_V))
@pytest.mark.parametrize(
    "processes",
    [2, 3, 4, 8, 16, *(pytest.param(each, marks=pytest.mark.slow) for each in (32, 64))],
)
def test_processes_in_a_v_wait_until_a_microbatch_has_passed_once(
    schedule: str, processes: int
) -> None:
    # Nothing is shorter: there the last process begins, and is done that much behind the first.
    for microbatches in (2 * processes, 2 * processes + 1):
        pipeline = SCHEDULES[schedule].pipeline(processes, 2 * processes, microbatches)
        timetable = Timetable.of(pipeline, SCHEDULES[schedule].order(pipeline), seconds)
        waited = timetable.seconds - 6 * microbatches
        assert waited == processes - 1
        # (PP / 2 - 1) (F&B + B - 3W) of DeepSeek-AI, 2024: a forward and a backward pass at the
        # same time, F&B, both hand on their results when they are done.
        forward_and_backward, backward, weight = 3, 2, 1
        assert waited <= (processes - 1) * (forward_and_backward + backward - 3 * weight)


PHASES = {"F": (FORWARD,), "I": (BACKWARD,), "W": (WEIGHT,), "B": (BACKWARD, WEIGHT)}


def torch_orders(schedule: str, processes: int, microbatches: int) -> Orders:
    """Returns the tasks of each process by torch's schedule."""
    table = getattr(torch_schedules, IN_V[schedule])._calculate_single_rank_operations
    given = SimpleNamespace(
        pp_group_size=processes, num_stages=2 * processes, _n_microbatches=microbatches
    )
    actions = (table(given, process) for process in range(processes))
    return [[task for each in mine for task in torch_tasks(each)] for mine in actions]


def torch_tasks(action: Any) -> Iterator[Task]:
    """Yields the tasks of an action; those of a pair one after another."""
    if action is not None and action.sub_actions:
        for each in action.sub_actions:
            yield from torch_tasks(each)
    elif action is not None:
        for phase in PHASES[action.computation_type.value]:
            yield Task(action.stage_index, action.microbatch_index, phase)


@pytest.mark.parametrize("schedule", sorted(IN_V))
@pytest.mark.parametrize("processes", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("taken", [(1.0, 1.0, 1.0), (1.0, 2.0, 1.0), (1.0, 2.0, 0.0)])
def test_in_a_v_nothing_takes_longer_or_is_kept_longer_than_by_torch(
    schedule: str, processes: int, taken: tuple[float, float, float]
) -> None:
    seconds = dict(zip((FORWARD, BACKWARD, WEIGHT), taken, strict=True))
    few = (1, 2, processes, 2 * processes - 1) if schedule == "zb-v" else ()
    for microbatches in (*few, 2 * processes, 2 * processes + 1, 4 * processes):
        pipeline = SCHEDULES[schedule].pipeline(processes, 2 * processes, microbatches)
        ours = SCHEDULES[schedule].order(pipeline)
        theirs = torch_orders(schedule, processes, microbatches)
        mine, other = (
            Timetable.of(pipeline, orders, lambda task: seconds[task.phase]).seconds
            for orders in (ours, theirs)
        )
        assert mine <= other
        assert all(map(int.__le__, kept(ours), kept(theirs)))


def test_more_activations_hide_backward_passes_that_take_longer() -> None:
    taken = {FORWARD: 1.0, BACKWARD: 2.0, WEIGHT: 1.0}
    pipeline = Pipeline(4, 4, 16)

    def finished(name: str) -> float:
        orders = SCHEDULES[name].order(pipeline)
        return Timetable.of(pipeline, orders, lambda task: taken[task.phase]).seconds

    assert finished("zb-h2") < finished("zb-h1")
    assert kept(SCHEDULES["zb-h2"].order(pipeline)) == [7, 7, 7, 7]


def test_processes_that_wait_for_one_another_are_noticed() -> None:
    pipeline = Pipeline(2, 2, 1)
    first, second = SCHEDULES["1f1b"].order(pipeline)
    with pytest.raises(ValueError, match="all processes wait for one another"):
        Timetable.of(pipeline, [first[::-1], second], seconds)


def test_what_stays_on_a_process_is_not_sent() -> None:
    schedule = SCHEDULES["zb-v"]
    pipeline = schedule.pipeline(1, 2, 2)
    timetable = Timetable.of(pipeline, schedule.order(pipeline), seconds, lambda task: 5.0)
    assert timetable.seconds == 2 * 3 * 2
