"""Order: puts the ops of a partitioned program into the order of a pipeline's schedule.

Which ops there are is decided: stages run on slices of the mesh, and what one needs of another is
sent. So a pipeline is nothing but an order of ops, which is the same for all ranks. Each of them
runs those of its own slice, and no two can wait for one another.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from autopar.ir.collectives import is_collective
from autopar.ir.program import Function, Op, Program
from autopar.partition.pipeline.schedules import (
    BACKWARD,
    DEFAULT_SCHEDULE,
    FORWARD,
    SCHEDULES,
    Clock,
    Pipeline,
    Task,
)

SECONDS: Mapping[str, float] = {FORWARD: 1.0, BACKWARD: 2.0}
"""What tasks take, in relation to one another."""


@dataclass(frozen=True)
class Order:
    """Orders the ops of a training step with several microbatches.

    Attributes:
        pipeline: The mesh axis along which the stages lie; "" if there are none.
        schedule: The name of the schedule.
    """

    name: ClassVar[str] = "order"
    pipeline: str = ""
    schedule: str = DEFAULT_SCHEDULE

    def __call__(self, program: Program) -> Program:
        """Returns the program with its ops in order."""
        if not self.pipeline or program.mesh is None:
            return program
        return program.with_main(self._ordered(program.main, program.mesh.axis_size(self.pipeline)))

    def _ordered(self, main: Function, processes: int) -> Function:
        tasks = _Tasks(main, self.pipeline, processes)
        found = [task for task in tasks.of_ops if task is not None]
        if not found:
            return main
        stages = 1 + max(task.stage for task in found)
        pipeline = Pipeline(processes, stages, 1 + max(task.microbatch for task in found))
        orders = SCHEDULES[self.schedule](pipeline)
        clock = Clock.of(pipeline, orders, lambda task: SECONDS[task.phase])
        times = [
            _time(op, task, at in tasks.sends, clock)
            for at, (op, task) in enumerate(zip(main.ops, tasks.of_ops, strict=True))
        ]
        return replace(main, ops=tuple(main.ops[at] for at in in_order(main.ops, times)))


class _Tasks:
    """The task that each op of a function is a part of; None of what none is.

    Args:
        main: The function, partitioned.
        axis: The mesh axis along which the stages lie.
        processes: How many there are along that.

    Attributes:
        of_ops: By position.
        sends: The positions of what hands results of a task to another process.
    """

    def __init__(self, main: Function, axis: str, processes: int) -> None:
        self._axis, self._processes = axis, processes
        self._made: dict[str, Task] = {}
        self.sends: set[int] = set()
        self.of_ops: list[Task | None] = []
        for at, op in enumerate(main.ops):
            sent = self._sent(op)
            task = sent or self._of(op)
            if sent is not None:
                self.sends.add(at)
            if task is not None:
                self._made.update(dict.fromkeys(op.results, task))
            self.of_ops.append(task)

    def _process(self, op: Op) -> int | None:
        return None if op.dist is None else dict(op.dist.mesh.fixed).get(self._axis)

    def _sent(self, op: Op) -> Task | None:
        """Returns the task whose result an op sends elsewhere; None if it doesn't."""
        if not is_collective(op.kind) or op.phase not in SECONDS:
            return None
        source = next((task for name in op.operands if (task := self._made.get(name))), None)
        if source is None or source.stage % self._processes == self._process(op):
            return None
        return source

    def _of(self, op: Op) -> Task | None:
        process = self._process(op)
        if process is None or op.phase not in SECONDS:
            return None
        stage = op.stage if op.stage % self._processes == process else process
        return Task(stage, op.microbatch, op.phase)


def _time(op: Op, task: Task | None, sends: bool, clock: Clock) -> float:
    """Returns when an op runs: as soon as it can, but for updates, if it is of no task."""
    if task is None:
        return 0.0 if op.phase in SECONDS else math.inf
    return clock.end[task] if sends else clock.begin[task]


def in_order(ops: Sequence[Op], times: Sequence[float]) -> list[int]:
    """Returns the positions of ops by time, and by their order; none before what it reads."""
    makers = {name: at for at, op in enumerate(ops) for name in op.results}
    reads = [{makers[name] for name in op.operands if name in makers} for op in ops]
    readers: list[list[int]] = [[] for _ in ops]
    for at, read in enumerate(reads):
        for maker in read:
            readers[maker].append(at)
    missing = list(map(len, reads))
    ready = [(times[at], at) for at, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    found: list[int] = []
    while ready:
        now, at = heapq.heappop(ready)
        found.append(at)
        for reader in readers[at]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (max(times[reader], now if now < math.inf else 0.0), reader))
    return found
