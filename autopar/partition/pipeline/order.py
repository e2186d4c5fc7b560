"""Order: puts the ops of a partitioned program into the order of a pipeline's schedule.

Which ops there are is decided: stages run on slices of the mesh, and what one needs of another is
sent. So a pipeline is nothing but an order of ops, which is the same for all ranks. Each of them
runs those of its own slice, and no two can wait for one another.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from autopar.cost import Cluster, evaluate
from autopar.ir.program import Function, Op, Program
from autopar.partition.pipeline.of_ops import PHASES, OpTasks
from autopar.partition.pipeline.runs import Runs, Widths
from autopar.partition.pipeline.schedules import DEFAULT_SCHEDULE, SCHEDULES
from autopar.partition.pipeline.tasks import BACKWARD, Task
from autopar.partition.pipeline.timetable import Timetable

Time = tuple[float, bool]
"""When an op runs, and whether behind others of that time."""


@dataclass(frozen=True)
class Order:
    """Orders the ops of a program whose batch is cut into microbatches.

    Attributes:
        pipeline: The mesh axis along which the stages lie; "" if there are none.
        schedule: The name of the schedule.
        widths: At how many indices of the axis the processes of stages are; none: at one each.
        cluster: The hardware, by which tasks take longer than others; None where all are alike.
    """

    name: ClassVar[str] = "order"
    pipeline: str = ""
    schedule: str = DEFAULT_SCHEDULE
    widths: Widths = ()
    cluster: Cluster | None = None

    def __call__(self, program: Program) -> Program:
        """Returns the program with its ops in order."""
        if not self.pipeline or program.mesh is None:
            return program
        runs = Runs.of(program.mesh, self.pipeline, self.widths)
        stages, microbatches = (
            1 + max(getattr(op, name) for op in program.main.ops)
            for name in ("stage", "microbatch")
        )
        pipeline = SCHEDULES[self.schedule].pipeline(len(runs), stages, microbatches)
        tasks = OpTasks(program.main, self.pipeline, pipeline, runs)
        if not any(tasks.of_ops):
            return program
        return program.with_main(self._ordered(program, tasks))

    def _ordered(self, program: Program, tasks: OpTasks) -> Function:
        main, pipeline = program.main, tasks.pipeline
        seconds = self._seconds(program, tasks)
        trains = any(op.phase == BACKWARD for op in main.ops)
        orders = SCHEDULES[self.schedule].orders(pipeline, trains=trains)
        timetable = Timetable.of(pipeline, orders, seconds, ahead=True)
        times = [
            _time(op, task, at in tasks.sends, timetable)
            for at, (op, task) in enumerate(zip(main.ops, tasks.of_ops, strict=True))
        ]
        return replace(main, ops=tuple(main.ops[at] for at in in_order(main.ops, times)))

    def _seconds(self, program: Program, tasks: OpTasks) -> Callable[[Task], float]:
        """Returns what says how long each task takes."""
        if self.cluster is None:
            return lambda task: 1.0
        seconds: dict[Task, float] = defaultdict(float)
        costs = evaluate(program, self.cluster).costs
        for at, (task, cost) in enumerate(zip(tasks.of_ops, costs, strict=True)):
            if task is not None and at not in tasks.sends:
                seconds[task] += cost.seconds
        return seconds.__getitem__


def _time(op: Op, task: Task | None, sends: bool, timetable: Timetable) -> Time:
    """Returns when an op runs: as soon as it can, but for updates, if it is of no task."""
    if task is None:
        return (0.0 if op.phase in PHASES else math.inf), False
    # Who sends what is done goes on with something else at the same time, and sends first.
    return (timetable.end[task], False) if sends else (timetable.begin[task], True)


def in_order(ops: Sequence[Op], times: Sequence[Time]) -> list[int]:
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
                heapq.heappush(ready, (max(times[reader], now), reader))
    assert len(found) == len(ops), "ops wait for one another"
    return found
