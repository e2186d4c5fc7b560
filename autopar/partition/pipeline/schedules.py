"""Schedules: in which order each process of a pipeline does its parts of a step.

A part, or *task*, is of a stage and a microbatch: the forward pass, which waits for that of the
stage before; the backward pass as far as the stage before waits for it; and the rest of that, the
gradients of weights, for which nobody waits.

    >>> [text(tasks) for tasks in SCHEDULES["1f1b"].order(Pipeline(2, 2, 3))]
    ['f0 f1 b0 w0 f2 b1 w1 b2 w2', 'f0 b0 w0 f1 b1 w1 f2 b2 w2']
    >>> [text(tasks) for tasks in SCHEDULES["zb-h1"].order(Pipeline(2, 2, 3))]
    ['f0 f1 b0 w0 f2 b1 w1 b2 w2', 'f0 b0 f1 b1 w0 f2 b2 w1 w2']

Who adds a schedule writes a function of a pipeline that returns the tasks of each process in order,
and gives it a name in `SCHEDULES`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
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


def forward_only(pipeline: Pipeline) -> Orders:
    """Inference: the forward pass of all microbatches, as they arrive."""
    return [pipeline.tasks(process, FORWARD) for process in range(pipeline.processes)]


def gpipe(pipeline: Pipeline) -> Orders:
    """First the forward pass of all microbatches, which are all kept until the backward pass."""
    return [
        [*pipeline.tasks(process, FORWARD), *_whole(pipeline.tasks(process, BACKWARD))]
        for process in range(pipeline.processes)
    ]


def one_forward_one_backward(pipeline: Pipeline) -> Orders:
    """As many forward passes as are under way until the first one returns; then both in turns.

    Narayanan et al., 2021; with several stages on a process, the interleaved schedule of that.
    """
    return [_whole(tasks) for tasks in _all_in_turns(pipeline)]


def zero_bubble(pipeline: Pipeline) -> Orders:
    """As 1F1B, but gradients of weights wait until others of a process have no use for its time.

    ZB-H1 (Qi et al., 2023): a process keeps what no more microbatches need than the first one does.
    """
    return [_whole(tasks, process) for process, tasks in enumerate(_all_in_turns(pipeline))]


def _whole(tasks: Iterable[Task], late: int = 0) -> list[Task]:
    """Returns tasks with the gradients of weights behind the backward passes, or behind later ones.

    Args:
        tasks: Forward and backward passes.
        late: By how many backward passes later.
    """
    found: list[Task] = []
    waiting: deque[Task] = deque()
    for task in tasks:
        found.append(task)
        if task.phase == BACKWARD:
            waiting.append(task._replace(phase=WEIGHT))
            if len(waiting) > late:
                found.append(waiting.popleft())
    return [*found, *waiting]


def _all_in_turns(pipeline: Pipeline) -> Iterator[list[Task]]:
    """Yields the forward and backward passes of each process, by 1F1B."""
    # What lacks to full rounds, of stages or microbatches, is left out afterwards: in turns of
    # other lengths processes would wait for one another.
    stages, microbatches = map(pipeline.rounded, (pipeline.stages, pipeline.microbatches))
    full = replace(pipeline, stages=stages, microbatches=microbatches)
    for process in range(pipeline.processes):
        yield [task for task in _in_turns(full, process) if pipeline.has(task)]


def _in_turns(pipeline: Pipeline, process: int) -> list[Task]:
    forward, backward = (pipeline.tasks(process, phase) for phase in (FORWARD, BACKWARD))
    rounds = len(pipeline.stages_of(process))
    behind = pipeline.processes - process - 1
    first = behind if rounds <= 1 else 2 * behind + (rounds - 1) * pipeline.processes
    both = chain.from_iterable(zip_longest(forward[first:], backward))
    return [*forward[:first], *(task for task in both if task is not None)]


def full(kept: Callable[[int], int]) -> Callable[[Pipeline], Orders]:
    """Returns a schedule in which a process always does something if anything can be done.

    That is a backward pass before a forward pass, and that before gradients of weights. While so
    many microbatches are under way, or a process keeps activations of as many, none begins there.

    Args:
        kept: Returns that number for a number of processes.
    """
    return lambda pipeline: _Filling(pipeline, kept(pipeline.processes)).orders()


class _Filling:
    """A pipeline whose tasks all take as long, step by step; see `full`."""

    def __init__(self, pipeline: Pipeline, kept: int) -> None:
        self._pipeline = pipeline
        self._stages = [pipeline.stages_of(process) for process in range(pipeline.processes)]
        self._most = kept
        self._under_way = 0
        self._kept = [0 for _ in self._stages]
        self._done: set[Task] = set()
        self._left = [
            {
                Task(stage, at, phase)
                for stage in stages
                for at in range(pipeline.microbatches)
                for phase in URGENCY
            }
            for stages in self._stages
        ]

    def orders(self) -> Orders:
        """Returns the tasks of each process."""
        found: list[list[Task]] = [[] for _ in self._left]
        while any(self._left):
            for process, task in enumerate([*map(self._chosen, range(len(self._left)))]):
                if task is not None:
                    found[process].append(task)
                    self._left[process].discard(task)
                    self._done.add(task)
                    self._kept[process] += KEPT[task.phase]
                    self._under_way += 0 if task.stage else KEPT[task.phase]
        return found

    def _chosen(self, process: int) -> Task | None:
        able = (task for task in self._left[process] if self._can_begin(process, task))
        return min(able, key=lambda t: (URGENCY[t.phase], t.microbatch, -t.stage), default=None)

    def _can_begin(self, process: int, task: Task) -> bool:
        stages = self._stages[process]
        if task.phase == FORWARD and task.stage == stages[0]:
            under_way = 0 if task.stage else self._under_way
            if max(self._kept[process] / len(stages), under_way) >= self._most:
                return False
        awaited = self._pipeline.awaited(task)
        return awaited is None or awaited in self._done


KEPT = {FORWARD: 1, BACKWARD: 0, WEIGHT: -1}
"""By how many stages' activations a process keeps more when a task is done."""

URGENCY = {BACKWARD: 0, FORWARD: 1, WEIGHT: 2}
"""Of what can be done, what is done first."""


@dataclass(frozen=True)
class Schedule:
    """A way to run a pipeline.

    Attributes:
        order: Returns the tasks of each process in order.
        turns: How many stages a process has where the model is cut automatically.
        in_v: Whether the last of two stages is on the first process, beside the first one.
    """

    order: Callable[[Pipeline], Orders]
    turns: int = 1
    in_v: bool = False

    def pipeline(self, processes: int, stages: int, microbatches: int) -> Pipeline:
        """Returns what is to be scheduled."""
        return Pipeline(processes, stages, microbatches, self.in_v)

    def orders(self, pipeline: Pipeline, *, trains: bool) -> Orders:
        """Returns the tasks of each process in order; without training, forward passes alone."""
        return self.order(pipeline) if trains else forward_only(pipeline)


SCHEDULES: Mapping[str, Schedule] = {
    "1f1b": Schedule(one_forward_one_backward),
    "interleaved": Schedule(one_forward_one_backward, turns=2),
    "gpipe": Schedule(gpipe),
    "zb-h1": Schedule(zero_bubble),
    "zb-h2": Schedule(full(lambda processes: 2 * processes - 1)),
    "zb-v": Schedule(full(lambda processes: processes), turns=2, in_v=True),
}
"""By the names that users say."""

DEFAULT_SCHEDULE = "1f1b"

AUTO_SCHEDULE = "auto"
"""In the place of a name: whichever is predicted to be the fastest."""


def text(tasks: Sequence[Task]) -> str:
    """Returns tasks as text: phases and microbatches."""
    return " ".join(f"{task.phase[0]}{task.microbatch}" for task in tasks)
