"""Pipelines beside those of torch.distributed.pipelining: milliseconds per step.

    python benchmarks/pipeline.py
    python benchmarks/pipeline.py --processes 2 --seconds 0.02

Layers sleepin their forward pass, and as long for the gradient of their input, and of their weight.
So what is measured is the schedule, and what it costs to send: processes need no processor of their
own. Each step is timed between two barriers, on gloo. Printed are medians, and the bubble: the part
of the time in which a process has nothing to do, of torch's pipeline, of ours, and as the timetable
of ours has it, with what it takes to send so little to a process that waits for it. What there is
to do is what one process takes for all. All train the same model from the same weights, and the
losses must be equal.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.partition.pipeline.schedules import SCHEDULES
from autopar.partition.pipeline.timetable import Timetable
from autopar.runtime.job.processes import Processes

LAYERS, WIDTH, WORDS, TOKENS = 8, 64, 64, 16
MICROBATCHES, ROWS = 8, 2
STEPS = 6
PINGS = 20

Step = Callable[[], float]
"""Runs a step; returns its loss, on ranks that know it."""


@torch.library.custom_op("bench::sleep", mutates_args=())
def sleep(x: Tensor, forward: float, backward: float) -> Tensor:
    """Returns a copy, after some seconds; its gradient takes others."""
    time.sleep(forward)
    return x.clone()


@sleep.register_fake
def _(x: Tensor, forward: float, backward: float) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
    ctx.backward = inputs[2]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return sleep(gradient, ctx.backward, 0.0), None, None


sleep.register_autograd(_backward, setup_context=_setup)


class Layer(nn.Module):
    """A linear layer that takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        x = sleep(x, self.seconds, self.seconds)
        return x + F.linear(x, sleep(self.linear.weight, 0.0, self.seconds), self.linear.bias)


class Model(nn.Module):
    """An embedding, layers and a head; the layers are in stages of equal length."""

    def __init__(self, seconds: float, stages: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(seconds) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.stages = stages

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for at, layer in enumerate(self.layers):
            with annotate.pipeline_stage(at * self.stages // LAYERS):
                x = layer(x)
        logits: Tensor = self.head(x)
        return logits


class Stage(nn.Module):
    """A part of the model, as torch's pipelines need it."""

    def __init__(self, model: Model, stage: int) -> None:
        super().__init__()
        of = [at * model.stages // LAYERS for at in range(LAYERS)]
        self.tokens = model.tokens if stage == 0 else None
        self.layers = nn.ModuleList(model.layers[at] for at in range(LAYERS) if of[at] == stage)
        self.head = model.head if stage == model.stages - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.tokens is None else self.tokens(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)


def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Returns the loss of a microbatch."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def batch() -> tuple[Tensor, Tensor]:
    """Returns inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    shape = (MICROBATCHES * ROWS, TOKENS)
    ids, target = (torch.randint(0, WORDS, shape, generator=generator) for _ in range(2))
    return ids, target


def made(seconds: float, stages: int) -> tuple[Model, torch.optim.Optimizer]:
    """Returns the model and its optimizer."""
    torch.manual_seed(0)
    model = Model(seconds, stages)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


COMPARED = {
    "GPipe": ("ScheduleGPipe", "gpipe", 1),
    "1F1B": ("Schedule1F1B", "1f1b", 1),
    "interleaved 1F1B": ("ScheduleInterleaved1F1B", "1f1b", 2),
    "zero bubble": ("ScheduleInterleavedZeroBubble", "zb-h1", 2),
    "in a V": ("ScheduleZBVZeroBubble", "zb-v", 2),
    "DualPipeV": ("ScheduleDualPipeV", "dualpipe-v", 2),
}
"""Torch's schedules and ours, and how many stages a process has."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="*", default=(2, 4), help="stages")
    parser.add_argument("--seconds", type=float, default=0.01, help="that a layer sleeps")
    options = parser.parse_args()
    print(f"{'':30}{'torch':>10}{'autopar':>10}{'ratio':>8}{'bubbles':>20}   ms per step")
    with tempfile.TemporaryDirectory() as folder:
        build = compiled(Path(folder), 1, 1, "1f1b", options.seconds)
        alone, _ = measured(1, autopar_step, build)
        asleep, sent = (measured(count, pings, options.seconds)[0] / PINGS for count in (1, 2))
        known = Measured(alone, sent - asleep)
        print(f"{'one process':30}{'':10}{1e3 * alone:>10.1f}")
        print(f"{'to send':40}{1e3 * known.sent:>10.1f}")
        for processes in options.processes:
            for name in COMPARED:
                compare(Path(folder), processes, name, options.seconds, known)


def compiled(folder: Path, processes: int, stages: int, schedule: str, seconds: float) -> Path:
    """Returns a build of a step as a pipeline."""
    build = folder / f"{processes}-{schedule}-{stages}"
    model, optimizer = made(seconds, stages)
    autopar.compile(
        model,
        batch(),
        mesh=f"pp={processes}",
        strategy=None,
        loss=loss,
        optimizer=optimizer,
        accumulate=MICROBATCHES,
        pipeline="pp",
        schedule=schedule,
    ).save(build)
    return build


@dataclass(frozen=True)
class Measured:
    """What predictions are made of.

    Attributes:
        alone: Seconds of a step in one process.
        sent: Seconds until another process, which waits for it, has what one sends.
    """

    alone: float
    sent: float

    def bubble(self, schedule: str, processes: int, stages: int) -> float:
        """Returns the bubble of a schedule whose tasks all take as long."""
        chosen = SCHEDULES[schedule]
        pipeline = chosen.pipeline(processes, stages, MICROBATCHES)
        task = self.alone / (3 * MICROBATCHES * stages)
        table = Timetable.of(pipeline, chosen.order(pipeline), lambda _: task, lambda _: self.sent)
        return 1 - self.alone / processes / table.seconds


def compare(folder: Path, processes: int, name: str, seconds: float, known: Measured) -> None:
    """Prints what a step takes with torch's schedule, and with ours."""
    theirs, ours, rounds = COMPARED[name]
    stages = rounds * processes
    build = compiled(folder, processes, stages, ours, seconds)
    their_seconds, their_losses = measured(processes, torch_step, theirs, seconds, stages)
    our_seconds, our_losses = measured(processes, autopar_step, build)
    torch.testing.assert_close(our_losses, their_losses)
    ideal = known.alone / processes
    both = (their_seconds, our_seconds)
    bubbles = [1 - ideal / each for each in both] + [known.bubble(ours, processes, stages)]
    row = "".join(f"{1e3 * each:>10.1f}" for each in both)
    shown = " ".join(f"{each:.3f}" for each in bubbles)
    print(f"{processes} processes, {name:<17}{row}{our_seconds / their_seconds:>8.3f}{shown:>20}")


def measured(
    processes: int, make: Callable[..., Any], *arguments: Any
) -> tuple[float, list[float]]:
    """Returns the median seconds of a step in processes of their own, and the losses."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    together = context.Barrier(processes)
    started = []
    for rank in range(processes):
        mine, theirs = context.Pipe(duplex=False)
        place = Processes(rank, processes, rank, processes, "127.0.0.1", port)
        process = context.Process(target=_rank, args=(theirs, together, place, make, arguments))
        process.start()
        started.append((process, mine))
    found = [line.recv() for _, line in started]
    for process, _ in started:
        process.join()
    losses = next(losses for _, losses in reversed(found) if losses)
    return max(seconds for seconds, _ in found), losses


def _rank(
    line: Connection,
    together: Barrier,
    place: Processes,
    make: Callable[..., Any],
    arguments: Any,
) -> None:
    torch.set_num_threads(1)
    taken, losses = [], []
    with make(place, *arguments) as step:
        for _ in range(STEPS):
            together.wait()
            start = time.perf_counter()
            losses.append(step())
            together.wait()
            taken.append(time.perf_counter() - start)
    line.send((median(taken[1:]), [each for each in losses if each is not None]))


@contextmanager
def autopar_step(
    place: Processes, build: Path, given: Callable[[], Any] = batch
) -> Iterator[Callable[[], float]]:
    """Yields a step of a build, for a batch."""
    with autopar.load(build, processes=place) as trainer:
        yield lambda: float(trainer.step(given()))


@contextmanager
def pings(place: Processes, seconds: float) -> Iterator[Callable[[], float]]:
    """Yields what sleeps, and sends as much as a microbatch to the other process, in turns."""
    where = f"tcp://{place.address}:{place.port}"
    dist.init_process_group("gloo", init_method=where, rank=place.rank, world_size=place.size)
    ball, other = torch.zeros(ROWS, TOKENS, WIDTH), 1 - place.rank

    def step() -> float:
        for turn in range(PINGS):
            is_mine = turn % place.size == place.rank
            if is_mine:
                time.sleep(seconds)
            if place.size > 1:
                (dist.send if is_mine else dist.recv)(ball, other)
        return 0.0

    yield step


@contextmanager
def torch_step(
    place: Processes, schedule: str, seconds: float, stages: int
) -> Iterator[Callable[[], float | None]]:
    """Yields a step of torch's schedule; None where its loss isn't known."""
    from torch.distributed.pipelining import PipelineStage, schedules

    where = f"tcp://{place.address}:{place.port}"
    dist.init_process_group("gloo", init_method=where, rank=place.rank, world_size=place.size)
    model, _ = made(seconds, stages)
    last_in_v = stages - 1 - place.rank
    in_v = [theirs for theirs, ours, _ in COMPARED.values() if SCHEDULES[ours].in_v]
    numbers = (
        [place.rank, last_in_v] if schedule in in_v else [*range(place.rank, stages, place.size)]
    )
    parts = [Stage(model, number) for number in numbers]
    piped = [
        PipelineStage(part, number, stages, torch.device("cpu"))
        for part, number in zip(parts, numbers, strict=True)
    ]
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)
    kind = getattr(schedules, schedule)
    run = kind(piped if len(piped) > 1 else piped[0], MICROBATCHES, loss_fn=loss)
    ids, target = batch()

    def step() -> float | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        inputs = (ids,) if 0 in numbers else ()
        asked = {"target": target, "losses": losses} if stages - 1 in numbers else {}
        run.step(*inputs, **asked)
        optimizer.step()
        return float(sum(each.item() for each in losses) / len(losses)) if losses else None

    yield step


if __name__ == "__main__":
    main()
