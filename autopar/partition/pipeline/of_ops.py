"""The tasks of a pipeline that the ops of a partitioned function are parts of."""

from __future__ import annotations

from autopar.ir.collectives import is_collective
from autopar.ir.program import Function, Op
from autopar.partition.pipeline.runs import Runs
from autopar.partition.pipeline.tasks import BACKWARD, FORWARD, WEIGHT, Pipeline, Task

PHASES = (FORWARD, BACKWARD)
"""The phases of ops that are part of tasks."""


class OpTasks:
    """The task that each op of a function is a part of; None of what none is.

    Args:
        main: The function, partitioned.
        axis: The mesh axis along which the stages lie.
        pipeline: Where each stage runs.
        runs: At which indices of the axis that is.

    Attributes:
        pipeline: What is to be scheduled.
        of_ops: By position.
        sends: The positions of what hands results of a task to another process.
    """

    def __init__(self, main: Function, axis: str, pipeline: Pipeline, runs: Runs) -> None:
        self._axis, self.pipeline, self._runs = axis, pipeline, runs
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
        self._tell_weights_apart(main)

    def _tell_weights_apart(self, main: Function) -> None:
        """Finds the backward ops for which no other stage waits: those are tasks of their own."""
        awaited: set[str] = set()
        for at, op in reversed([*enumerate(main.ops)]):
            task = self.of_ops[at]
            if task is None or op.phase != BACKWARD:
                continue
            if at in self.sends and self._process(op) is not None:
                awaited.update(op.operands)
            elif at in self.sends or awaited.isdisjoint(op.results):
                self.of_ops[at] = task._replace(phase=WEIGHT)
            else:
                awaited.update(op.operands)

    def _process(self, op: Op) -> int | None:
        index = None if op.dist is None else dict(op.dist.mesh.fixed).get(self._axis)
        return self._runs.number(index)

    def _sent(self, op: Op) -> Task | None:
        """Returns the task whose result an op sends elsewhere; None if it doesn't."""
        if not is_collective(op.kind) or op.phase not in PHASES:
            return None
        source = next((task for name in op.operands if (task := self._made.get(name))), None)
        if source is None or self.pipeline.process_of(source.stage) == self._process(op):
            return None
        return source

    def _of(self, op: Op) -> Task | None:
        process = self._process(op)
        if process is None or op.phase not in PHASES:
            return None
        stage = op.stage if self.pipeline.process_of(op.stage) == process else process
        return Task(stage, op.microbatch, op.phase)
