"""Schedules: in which order each process of a pipeline does its parts of a step.

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

from autopar.partition.pipeline.filling import full
from autopar.partition.pipeline.in_v import dualpipe_v, zero_bubble_v
from autopar.partition.pipeline.tasks import BACKWARD, FORWARD, WEIGHT, Orders, Pipeline, Task


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


@dataclass(frozen=True)
class Schedule:
    """A way to run a pipeline.

    Attributes:
        order: Returns the tasks of each process in order.
        turns: How many stages a process has where the model is cut automatically.
        in_v: Whether the last of two stages is on the first process, beside the first one.
        apart: Whether all forward passes are done before a backward pass begins, as where the
            loss is made of what all of them return.
    """

    order: Callable[[Pipeline], Orders]
    turns: int = 1
    in_v: bool = False
    apart: bool = False

    def pipeline(self, processes: int, stages: int, microbatches: int) -> Pipeline:
        """Returns what is to be scheduled."""
        return Pipeline(processes, stages, microbatches, self.in_v)

    def orders(self, pipeline: Pipeline, *, trains: bool) -> Orders:
        """Returns the tasks of each process in order; without training, forward passes alone."""
        return self.order(pipeline) if trains else forward_only(pipeline)


SCHEDULES: Mapping[str, Schedule] = {
    "1f1b": Schedule(one_forward_one_backward),
    "interleaved": Schedule(one_forward_one_backward, turns=2),
    "gpipe": Schedule(gpipe, apart=True),
    "zb-h1": Schedule(zero_bubble),
    "zb-h2": Schedule(full(lambda processes: 2 * processes - 1)),
    "zb-v": Schedule(zero_bubble_v, turns=2, in_v=True),
    "dualpipe-v": Schedule(dualpipe_v, turns=2, in_v=True),
}
"""By the names that users say."""

DEFAULT_SCHEDULE = "1f1b"

AUTO_SCHEDULE = "auto"
"""In the place of a name: whichever is predicted to be the fastest."""


def text(tasks: Sequence[Task]) -> str:
    """Returns tasks as text: phases and microbatches."""
    return " ".join(f"{task.phase[0]}{task.microbatch}" for task in tasks)
