"""Tasks: the parts of a pipeline's step, where each runs, and what it waits for.

A part, or *task*, is of a stage and a microbatch: the forward pass, which waits for that of the
stage before; the backward pass as far as the stage before waits for it; and the rest of that, the
gradients of weights, for which nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"


class Task(NamedTuple):
    """A part of a step.

    Attributes:
        stage: The stage.
        microbatch: The microbatch.
        phase: FORWARD, BACKWARD or WEIGHT.
    """

    stage: int
    microbatch: int
    phase: str


Orders = Sequence[Sequence[Task]]
"""The tasks of each process, in order."""


@dataclass(frozen=True)
class Pipeline:
    """What is to be scheduled.

    Attributes:
        processes: How many there are along the axis of the stages.
        stages: How many there are.
        microbatches: How many a batch is cut into.
        in_v: Whether stages are laid out there and back, and so on, in the place of in turns.
    """

    processes: int
    stages: int
    microbatches: int
    in_v: bool = False

    def process_of(self, stage: int) -> int:
        """Returns where a stage runs."""
        turn, at = divmod(stage, self.processes)
        return self.processes - 1 - at if self.in_v and turn % 2 else at

    def stages_of(self, process: int) -> list[int]:
        """Returns the stages that run on a process."""
        return [stage for stage in range(self.stages) if self.process_of(stage) == process]

    def has(self, task: Task) -> bool:
        """Returns whether a task is one of its own."""
        return task.stage < self.stages and task.microbatch < self.microbatches

    def rounded(self, number: int) -> int:
        """Returns the next multiple of the number of processes."""
        return -(-number // self.processes) * self.processes

    def tasks(self, process: int, phase: str) -> list[Task]:
        """Returns the tasks of a process in a phase, as they arrive.

        As many microbatches as there are processes pass a stage before the next one's turn.
        """
        stages = self.stages_of(process)
        ordered = stages if phase == FORWARD else reversed(stages)
        turns = {stage: turn for turn, stage in enumerate(ordered)}
        found = [Task(s, m, phase) for s in stages for m in range(self.microbatches)]
        return sorted(found, key=lambda t: (t.microbatch // self.processes, turns[t.stage], t))

    def awaited(self, task: Task) -> Task | None:
        """Returns the task that must be done before; None if it can begin at once."""
        if task.phase == FORWARD:
            return task._replace(stage=task.stage - 1) if task.stage else None
        if task.phase == WEIGHT:
            return task._replace(phase=BACKWARD)
        if task.stage == self.stages - 1:
            return task._replace(phase=FORWARD)
        return task._replace(stage=task.stage + 1)
