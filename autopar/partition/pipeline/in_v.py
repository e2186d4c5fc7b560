"""Schedules in a V: two stages per process, there and back, so that the last is beside the first.

On each process the passes of its two stages are in turns. There is an order of forward passes and
one of backward passes, which begin with as many of a stage as reach the process before the first
one of the other stage does:

    process 0 of 2:  forward  0 0 0 1 1, then 0 1 0 1 ...    backward  1 1, then 0 1 0 1 ...
    process 1 of 2:  forward  0 1 0 1, then 0 1 0 1 ...      backward  1, then 0 1 0 1 ...

(0 is the first of its stages.) As many forward passes as there are stages come first, and then a
backward pass and a forward pass in turns. Gradients of weights fill the gaps. Nothing is special at
the end: microbatches that there aren't are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, cycle, islice, repeat

from autopar.partition.pipeline.filling import full, with_weights_between
from autopar.partition.pipeline.tasks import BACKWARD, FORWARD, Orders, Pipeline, Task


def zero_bubble_v(pipeline: Pipeline) -> Orders:
    """A backward pass, and then a forward pass of the other stage.

    ZB-V (Qi et al., 2023): a process keeps what as many microbatches need as there are processes.
    """
    return _in_turns(pipeline, lambda process: [])


def dualpipe_v(pipeline: Pipeline) -> Orders:
    """A forward pass, and then a backward pass of the other stage: one sends while the other runs.

    DualPipeV, the V-shaped half of DualPipe (DeepSeek-AI, 2024). So each process but the last one
    does another forward pass once, when the gradient of its first one is as far as the process
    behind it; it keeps one stage's activations more.
    """
    return _in_turns(pipeline, lambda process: [pipeline.processes - process - 1])


def _in_turns(pipeline: Pipeline, forward_twice: Callable[[int], list[int]]) -> Orders:
    """Returns the tasks of each process.

    Args:
        pipeline: The pipeline; one with more than two stages per process is filled step by step.
        forward_twice: Returns before which backward passes of a process there are two forward
            passes.
    """
    if pipeline.stages > 2 * pipeline.processes:
        return full(lambda processes: processes)(pipeline)
    passes = [
        [*filter(pipeline.has, _passes(pipeline, process, forward_twice(process)))]
        for process in range(pipeline.processes)
    ]
    return with_weights_between(pipeline, passes)


def _passes(pipeline: Pipeline, process: int, forward_twice: Iterable[int]) -> Iterator[Task]:
    """Yields the passes of a process, and more than there are."""
    stages = process, 2 * pipeline.processes - 1 - process
    behind = pipeline.processes - process
    both = [0, 1] * process
    first = [*repeat(0, 2 * behind - 1), *reversed(both), *repeat(1, behind)]
    forward = _numbered(FORWARD, stages, chain(first, cycle((0, 1))))
    backward = _numbered(BACKWARD, stages, chain(repeat(1, behind), cycle((0, 1))))
    yield from islice(forward, 2 * pipeline.processes - 1)
    for at in range(2 * pipeline.microbatches + 2 * pipeline.processes):
        if at in forward_twice:
            yield next(forward)
        yield next(forward)
        yield next(backward)


def _numbered(phase: str, stages: tuple[int, int], turns: Iterable[int]) -> Iterator[Task]:
    """Yields the passes of two stages, each with its next microbatch."""
    microbatches: defaultdict[int, Iterator[int]] = defaultdict(count)
    for turn in turns:
        yield Task(stages[turn], next(microbatches[turn]), phase)
