"""Timetables: when the tasks of a pipeline run, each as soon as it can."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from autopar.partition.pipeline.tasks import Orders, Pipeline, Task


@dataclass(frozen=True)
class Timetable:
    """When tasks run if each process does its tasks in order, each as soon as it can.

    Attributes:
        begin, end: When each begins and is done.
    """

    begin: Mapping[Task, float]
    end: Mapping[Task, float]

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        orders: Orders,
        seconds: Callable[[Task], float],
        delay: Callable[[Task], float] = lambda task: 0.0,
        *,
        ahead: bool = False,
    ) -> Timetable:
        """Returns it.

        Args:
            pipeline: The pipeline.
            orders: The tasks of each process.
            seconds: What a task takes.
            delay: What it takes to send its result to another process, one after another.
            ahead: Whether a task begins when what its process gets next is there, too, if that
                doesn't depend on it.

        Raises:
            ValueError: If processes wait for one another.
        """
        return _Running(pipeline, orders, seconds, delay, ahead).timetable()

    @property
    def seconds(self) -> float:
        """When all is done."""
        return max(self.end.values(), default=0.0)


class _Running:
    """A pipeline that runs; see `Timetable.of`."""

    def __init__(
        self,
        pipeline: Pipeline,
        orders: Orders,
        seconds: Callable[[Task], float],
        delay: Callable[[Task], float],
        ahead: bool,
    ) -> None:
        self._pipeline, self._seconds, self._delay, self._ahead = pipeline, seconds, delay, ahead
        self._left = [deque(tasks) for tasks in orders]
        self._free = [0.0 for _ in orders]
        self._sent: dict[tuple[int, str], float] = defaultdict(float)
        self._begin: dict[Task, float] = {}
        self._end: dict[Task, float] = {}

    def timetable(self) -> Timetable:
        """Runs all tasks."""
        while any(self._left):
            process = self._next()
            posted = self._gets_next(process)
            task = self._left[process].popleft()
            begin = max(self._free[process], self._arrived(task))
            if posted is not None:
                begin = max(begin, self._end.get(posted, 0.0))
            self._begin[task] = begin
            self._free[process] = self._end[task] = begin + self._seconds(task)
        return Timetable(self._begin, self._end)

    def _next(self) -> int:
        """Returns a process that can begin a task."""
        able = [process for process in range(len(self._left)) if self._can_begin(process)]
        if not able:
            raise ValueError(f"{self._pipeline}: all processes wait for one another")
        return next(filter(self._is_ahead, able), able[0])

    def _can_begin(self, process: int) -> bool:
        tasks = self._left[process]
        awaited = self._pipeline.awaited(tasks[0]) if tasks else None
        return bool(tasks) and (awaited is None or awaited in self._end)

    def _is_ahead(self, process: int) -> bool:
        awaited = self._gets_next(process)
        return awaited is None or awaited in self._end

    def _gets_next(self, process: int) -> Task | None:
        """Returns the task whose result a process gets next, after what it begins with."""
        if self._ahead:
            for task in islice(self._left[process], 1, None):
                awaited = self._pipeline.awaited(task)
                if awaited and self._pipeline.process_of(awaited.stage) != process:
                    return awaited
        return None

    def _arrived(self, task: Task) -> float:
        """Returns when what a task waits for is there."""
        awaited = self._pipeline.awaited(task)
        if awaited is None:
            return 0.0
        arrived = self._end[awaited]
        here, there = map(self._pipeline.process_of, (awaited.stage, task.stage))
        if here != there:
            link = task.stage, task.phase
            arrived = self._sent[link] = max(arrived, self._sent[link]) + self._delay(awaited)
        return arrived
