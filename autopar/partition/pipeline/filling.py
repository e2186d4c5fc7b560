"""Filling: orders found step by step, as if all tasks took as long, with something in each gap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate

from autopar.partition.pipeline.tasks import BACKWARD, FORWARD, WEIGHT, Orders, Pipeline, Task

KEPT = {FORWARD: 1, BACKWARD: 0, WEIGHT: -1}
"""By how many stages' activations a process keeps more when a task is done."""

URGENCY = {BACKWARD: 0, FORWARD: 1, WEIGHT: 2}
"""Of what can be done, what is done first."""


def full(kept: Callable[[int], int]) -> Callable[[Pipeline], Orders]:
    """Returns a schedule in which a process always does something if anything can be done.

    That is a backward pass before a forward pass, and that before gradients of weights. While so
    many microbatches are under way, or a process keeps activations of as many, none begins there.

    Args:
        kept: Returns that number for a number of processes.
    """
    return lambda pipeline: _Full(pipeline, kept(pipeline.processes)).orders()


def with_weights_between(pipeline: Pipeline, passes: Orders) -> Orders:
    """Returns the tasks of each process: its passes in order, and gradients of weights between.

    Those are computed when the next pass can't begin yet: what it waits for isn't done, or the
    process keeps as many activations as it would if they followed each backward pass at once.

    Args:
        pipeline: The pipeline.
        passes: The forward and backward passes of each process.
    """
    return _InOrder(pipeline, passes).orders()


class _Steps(ABC):
    """A pipeline in which each process does a task in each step, if there is one that it can do."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._kept = [0] * pipeline.processes
        self._done: set[Task] = set()

    def orders(self) -> Orders:
        """Returns the tasks of each process."""
        found: list[list[Task]] = [[] for _ in self._kept]
        while any(step := [*map(self._chosen, range(len(found)))]):
            for process, task in enumerate(step):
                if task is not None:
                    found[process].append(task)
                    self._do(process, task)
        return found

    @abstractmethod
    def _chosen(self, process: int) -> Task | None:
        """Returns what a process does next; None if it waits."""

    def _do(self, process: int, task: Task) -> None:
        self._done.add(task)
        self._kept[process] += KEPT[task.phase]

    def _is_awaited(self, task: Task) -> bool:
        """Returns whether what a task waits for isn't done."""
        awaited = self._pipeline.awaited(task)
        return awaited is not None and awaited not in self._done


class _Full(_Steps):
    """See `full`."""

    def __init__(self, pipeline: Pipeline, kept: int) -> None:
        super().__init__(pipeline)
        self._stages = [pipeline.stages_of(process) for process in range(pipeline.processes)]
        self._most = kept
        self._under_way = 0
        self._left = [
            {
                Task(stage, at, phase)
                for stage in stages
                for at in range(pipeline.microbatches)
                for phase in URGENCY
            }
            for stages in self._stages
        ]

    def _chosen(self, process: int) -> Task | None:
        able = (task for task in self._left[process] if self._can_begin(process, task))
        return min(able, key=lambda t: (URGENCY[t.phase], t.microbatch, -t.stage), default=None)

    def _do(self, process: int, task: Task) -> None:
        super()._do(process, task)
        self._left[process].discard(task)
        self._under_way += 0 if task.stage else KEPT[task.phase]

    def _can_begin(self, process: int, task: Task) -> bool:
        stages = self._stages[process]
        if task.phase == FORWARD and task.stage == stages[0]:
            under_way = 0 if task.stage else self._under_way
            if max(self._kept[process] / len(stages), under_way) >= self._most:
                return False
        return not self._is_awaited(task)


class _InOrder(_Steps):
    """See `with_weights_between`."""

    def __init__(self, pipeline: Pipeline, passes: Orders) -> None:
        super().__init__(pipeline)
        self._left = [deque(tasks) for tasks in passes]
        self._weights: list[deque[Task]] = [deque() for _ in passes]
        self._most = [*map(_kept_at_least, passes)]

    def _chosen(self, process: int) -> Task | None:
        passes, weights = self._left[process], self._weights[process]
        if passes and not self._is_awaited(passes[0]):
            has_room = self._kept[process] < self._most[process]
            if passes[0].phase == BACKWARD or has_room:
                return passes[0]
        return weights[0] if weights else None

    def _do(self, process: int, task: Task) -> None:
        super()._do(process, task)
        if task.phase == WEIGHT:
            self._weights[process].popleft()
            return
        self._left[process].popleft()
        if task.phase == BACKWARD:
            self._weights[process].append(task._replace(phase=WEIGHT))


def _kept_at_least(passes: Iterable[Task]) -> int:
    """Returns how many activations are kept if weights get their gradients as soon as they can."""
    changes = (1 if task.phase == FORWARD else -1 for task in passes)
    return max(accumulate(changes), default=0)
