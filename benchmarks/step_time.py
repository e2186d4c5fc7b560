"""Seconds of a training step on two processes: compiled programs beside hand-written ones.

    python benchmarks/step_time.py                        # GPT blocks of the default size
    python benchmarks/step_time.py --layers 4 --hidden 512 --batch 8 --sequence 128
    python benchmarks/step_time.py --torch-compile        # everything under torch.compile as well

Two gloo processes of one thread each train the same blocks on the same batches in several ways
(see `step_contenders`). In every round each of them does one step, in an order that rotates, so
whatever else the machine does meets all of them alike. Per round the time of the slower rank
counts. A ratio is the median over the rounds of (compiled program / other), with the 95% interval
of that median (Conover, *Practical Nonparametric Statistics*, 1999: order statistics); beside it
the same of CPU seconds of both processes together. All losses must agree.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from step_contenders import BY_OTHERS, Size, Step, ours, write_builds

from autopar.runtime.job.processes import Processes

T = TypeVar("T")

WORLD = 2
TOLERANCE = 1e-4
"""Largest relative difference of losses."""

PAIRS: Sequence[tuple[str, str]] = (
    ("autopar tensor", "megatron"),
    ("autopar tensor", "dtensor"),
    ("autopar data", "ddp"),
    ("autopar fsdp", "fsdp2"),
)
COMPILED_PAIRS: Sequence[tuple[str, str]] = (
    ("compiled autopar tensor", "compiled megatron"),
    ("compiled autopar data", "compiled ddp"),
)

Times = dict[str, list[tuple[float, float]]]
"""Per contender, for each round (seconds of the slower rank, CPU seconds of all ranks)."""


@contextmanager
def contenders(
    names: Sequence[str], size: Size, folder: Path, rank: int, port: int
) -> Iterator[dict[str, Step]]:
    """Yields the steps by name, in a process that has the process group."""
    with ExitStack() as stack:
        steps: dict[str, Step] = {}
        for name in names:
            if name in BY_OTHERS:
                steps[name] = BY_OTHERS[name](size)
                continue
            processes = Processes(rank, WORLD, rank, WORLD, "127.0.0.1", port, prefix=name)
            trainer = ours(folder / name.split()[-1], processes, name.startswith("compiled"))
            steps[name] = stack.enter_context(trainer).step
        yield steps


def measured(
    steps: Mapping[str, Callable[[T], torch.Tensor]], batches: Sequence[T], warmup: int
) -> Times:
    """Runs a round per batch, and returns the times of all but the first ones."""
    names = list(steps)
    times: Times = {name: [] for name in names}
    losses = torch.zeros(len(batches), len(names))
    for number, batch in enumerate(batches):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            dist.barrier()
            cpu, start = time.process_time(), time.perf_counter()
            loss = steps[name](batch)
            seconds = time.perf_counter() - start
            spent = torch.tensor([seconds, time.process_time() - cpu])
            losses[number, names.index(name)] = loss
            everyone = [torch.empty(2) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, spent)
            if number >= warmup:
                wall, total = zip(*(each.tolist() for each in everyone), strict=True)
                times[name].append((max(wall), sum(total)))
    check_losses(names, losses)
    return times


def check_losses(names: Sequence[str], losses: torch.Tensor) -> None:
    """Ends the benchmark if contenders trained differently. Without their order of summation."""
    dist.all_reduce(losses)
    losses /= dist.get_world_size()
    reference = losses[:, :1]
    worst = ((losses - reference).abs() / reference).max(0).values
    for name, error in zip(names, worst.tolist(), strict=True):
        if not error < TOLERANCE:
            raise SystemExit(f"{name} trains differently from {names[0]}: losses differ by {error}")


def rank_main(rank: int, port: int, folder: Path, options: argparse.Namespace) -> None:
    """Runs one process; the first one prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    size = size_of(options)
    pairs = pairs_of(options)
    names = list(dict.fromkeys(name for pair in reversed(pairs) for name in reversed(pair)))
    batches = size.batches(options.warmup + options.rounds)
    with contenders(names, size, folder, rank, port) as steps:
        times = measured(steps, batches, options.warmup)
        dist.barrier()
    if rank == 0:
        print(table(times, pairs), flush=True)
    dist.destroy_process_group()


def table(times: Times, pairs: Sequence[tuple[str, str]]) -> str:
    """Returns the report: milliseconds of each contender, then ratios."""
    lines = [f"{'':26}{'ms per step':>12}{'CPU-ms':>9}"]
    for name, spent in times.items():
        wall, cpu = (statistics.median(each) * 1e3 for each in zip(*spent, strict=True))
        lines.append(f"{name:26}{wall:12.2f}{cpu:9.2f}")
    lines.append(f"\n{'':46}{'time (95% interval)':>22}{'CPU time':>22}")
    for ours_, other in pairs:
        both = list(zip(times[ours_], times[other], strict=True))
        ratios = [[a[at] / b[at] for a, b in both] for at in range(2)]
        texts = (interval_text(each) for each in ratios)
        lines.append(f"{ours_ + ' / ' + other:46}{''.join(f'{text:>22}' for text in texts)}")
    return "\n".join(lines)


def interval_text(values: Sequence[float]) -> str:
    """Returns a median and its 95% interval, which are two of the values in ascending order."""
    ordered = sorted(values)
    count = len(ordered)
    half = 0.98 * math.sqrt(count)
    low, high = math.floor(count / 2 - half), math.ceil(count / 2 + half)
    ends = ordered[max(low, 0)], ordered[min(high, count - 1)]
    return f"{statistics.median(ordered):.3f} ({ends[0]:.3f}-{ends[1]:.3f})"


def size_of(options: argparse.Namespace) -> Size:
    """Returns the sizes that were asked for."""
    return Size(
        options.layers,
        options.hidden,
        options.heads,
        options.batch,
        options.sequence,
        options.optimizer,
        not options.unfused,
    )


def pairs_of(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Returns who is compared with whom."""
    pairs = [*PAIRS, *(COMPILED_PAIRS if options.torch_compile else ())]
    return [pair for pair in pairs if options.only in " ".join(pair)]


def parsed() -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sizes = {"layers": 2, "hidden": 256, "heads": 8, "batch": 4, "sequence": 64}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--unfused", action="store_true", help="torch's default optimizer loops")
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--only", default="", help="only pairs with this word")
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
        arguments = (port, Path(folder), options)
        ranks = [
            context.Process(target=rank_main, args=(rank, *arguments)) for rank in range(WORLD)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    if any(each.exitcode for each in ranks):
        raise SystemExit("a rank failed")


if __name__ == "__main__":
    main()
