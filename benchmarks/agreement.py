"""What it costs that ranks compare what they are given.

    python benchmarks/agreement.py                 # GPT blocks, two processes; and 64 MiB of input
    python benchmarks/agreement.py --layers 1 --hidden 32 --batch 2 --sequence 16    # a tiny step

Two gloo processes of one thread each train the same blocks, as `step_time.py` does: with inputs
compared, with `check_inputs=False`, and with nothing said between ranks. Ratios are medians over
the rounds; they vary by some percent, so what the comparison takes of the thread that trains is
measured by itself too. Then a batch of 64 MiB is compared in this process alone, on memory that
isn't in any cache.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from step_contenders import Size, write_builds
from step_time import WORLD, measured, table
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.runtime.agree.agreement import Agreement, Offer, Pending, Talk
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer

CONTENDERS = ("silent", "not compared", "compared")
PAIRS = (("compared", "silent"), ("not compared", "silent"), ("compared", "not compared"))
LARGE = 64 << 20
"""Bytes of the large batch."""


class Alone:
    """A rank that finds all others agreed with it."""

    rank, size, device = 0, 8, torch.device("cpu")

    def start_sum(self, numbers: Sequence[int | Tensor]) -> Callable[[], list[int]]:
        """See `Talk`."""
        return lambda: [0] * len(numbers)

    def decide(self, text: str, rule: Callable[[list[str]], str]) -> str:
        """See `Talk`."""
        return rule([text])


class TimedPending:
    """A comparison that adds what settling takes to the last of some CPU seconds."""

    def __init__(self, pending: Pending, seconds: list[float]) -> None:
        self.pending = pending
        self.seconds = seconds

    def settle(self) -> InvalidInputError | None:
        """See `Pending`."""
        began = time.thread_time()
        try:
            return self.pending.settle()
        finally:
            self.seconds[-1] += time.thread_time() - began


class Timed(Agreement):
    """Measures what comparing takes.

    Attributes:
        seconds: CPU seconds of the thread that trains, per step.
    """

    def __init__(self, talk: Talk | None) -> None:
        super().__init__(talk)
        self.seconds: list[float] = []

    def start(self, offer: Offer) -> Pending:
        """See `Agreement`."""
        began = time.thread_time()
        pending = super().start(offer)
        self.seconds.append(time.thread_time() - began)
        return cast(Pending, TimedPending(pending, self.seconds))


def opened(name: str, build: Path, rank: int, port: int) -> Trainer:
    """Returns a trainer that compares what it is given, or doesn't."""
    processes = Processes(rank, WORLD, rank, WORLD, "127.0.0.1", port, prefix=name)
    trainer = open_trainer(build, processes=processes, check_inputs=name == "compared")
    if name == "silent":
        trainer.ranks.agreement = Agreement()  # type: ignore[misc]
    elif name == "compared":
        trainer.ranks.agreement = Timed(trainer.ranks.agreement.talk)  # type: ignore[misc]
    return trainer


def rank_main(rank: int, port: int, folder: Path, options: argparse.Namespace) -> None:
    """Runs one process; the first one prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    batches = size_of(options).batches(options.warmup + options.rounds)
    with ExitStack() as stack:
        build = folder / options.strategy
        trainers = {
            name: stack.enter_context(opened(name, build, rank, port)) for name in CONTENDERS
        }
        steps = {name: trainer.step for name, trainer in trainers.items()}
        times = measured(steps, batches, options.warmup)
        timed = trainers["compared"].ranks.agreement
    # The store ends with the process group of rank 0: all must have closed what uses it.
    dist.barrier()
    if rank == 0:
        print(table(times, PAIRS), flush=True)
        assert isinstance(timed, Timed)
        taken = statistics.median(timed.seconds[options.warmup :])
        print(f"comparing takes {taken * 1e3:.3f} CPU-ms of each step", flush=True)
    dist.destroy_process_group()


def large_batch() -> str:
    """Returns what it takes to compare a batch of 64 MiB."""
    batch = torch.ones(64, LARGE // 64 // 4)
    other = torch.ones(2 * LARGE // 4)
    agreement = Agreement(Alone())
    seconds = []
    for _ in range(60):
        other.add_(1)
        start = time.process_time()
        agreement.start(Offer(tensors={"x": batch})).settle()
        seconds.append(time.process_time() - start)
    return f"64 MiB of input: {statistics.median(seconds) * 1e3:.2f} CPU-ms"


def size_of(options: argparse.Namespace) -> Size:
    """Returns the sizes that were asked for."""
    return Size(options.layers, options.hidden, options.heads, options.batch, options.sequence)


def parsed() -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sizes = {"layers": 2, "hidden": 256, "heads": 8, "batch": 4, "sequence": 64}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--strategy", choices=("data", "tensor", "fsdp"), default="data")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--warmup", type=int, default=10)
    return parser.parse_args()


def main() -> None:
    """Compiles, then measures."""
    options = parsed()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        write_builds(size_of(options), WORLD, Path(folder))
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=rank_main, args=(rank, port, Path(folder), options))
            for rank in range(WORLD)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    if any(each.exitcode for each in ranks):
        raise SystemExit("a rank failed")
    print(large_batch())


if __name__ == "__main__":
    main()
