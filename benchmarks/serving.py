"""What a session costs that serves MiniLM, and whether it leaks: open sizes, 4 processes.

    python benchmarks/serving.py                     # 20,000 requests, then the comparisons
    python benchmarks/serving.py --requests 2000     # fewer

First random requests from 8 threads: memory, open files and entries of /dev/shm of all processes,
before (once some requests have passed) and after. Then, in turns, calls of a session and the same
requests on ranks that know them already (`serving_ranks.py`): latencies of one caller, and requests
per second of 8 callers, with dynamic batching and without. Exit code 1: something leaks, or a call
takes longer than `LATENCY_BAR` times what the ranks take, or 8 callers get less than
`THROUGHPUT_BAR` of what the ranks give.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
from compile_time import model_file
from serving_ranks import Direct, feeds

import autopar

RANKS, CALLERS = 4, 8
WARMUP = 1_000
"""Requests before the first look: memory grows until all kinds of them have been seen."""

ROUND = 40
"""Requests of a turn."""

LATENCY_BAR, THROUGHPUT_BAR = 1.3, 0.9
SLACK = 8 << 20
"""Bytes by which a process may grow while nothing leaks: freed memory is in other pieces."""

LEAST = 512
"""Bytes per request, beyond the slack, from which a process leaks."""

SHARED = Path("/dev/shm")
MOST_TOGETHER = 64
"""Rows of calls that are run together, where they are."""


@dataclass(frozen=True)
class Held:
    """What a process holds.

    Attributes:
        memory: Bytes of main memory.
        files: Open files.
    """

    memory: int
    files: int

    @classmethod
    def of(cls, process: int) -> Held:
        """Looks at a process."""
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        files = len(os.listdir(f"/proc/{process}/fd"))
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), files)


def main() -> int:
    """Measures, prints, and returns 1 if something is as it must not be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000, help="in search of leaks")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each comparison")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        autopar.compile_onnx(model_file(), build, mesh=RANKS)
        found = [leaks_nothing(build, options.requests), is_fast(build, options.rounds)]
    return 0 if all(found) else 1


def leaks_nothing(build: Path, requests: int) -> bool:
    """Prints what requests leave behind; returns whether that is nothing."""
    with autopar.InferenceSession(build) as session:

        def call(number: int) -> None:
            session.run(None, feeds(number))

        with ThreadPoolExecutor(CALLERS) as pool:
            list(pool.map(call, range(WARMUP)))
            before, shared = held_by_all(), shared_entries()
            list(pool.map(call, range(WARMUP, WARMUP + requests)))
            after, shared_after = held_by_all(), shared_entries()
    print(f"{requests} requests of {CALLERS} threads, after {WARMUP} others")
    print(f"{'':12}{'MiB before':>12}{'after':>10}{'files before':>14}{'after':>8}")
    for name, one in before.items():
        other = after[name]
        mebibytes = f"{one.memory / 2**20:12.1f}{other.memory / 2**20:10.1f}"
        print(f"{name:12}{mebibytes}{one.files:14}{other.files:8}")
    print(f"{'/dev/shm':12}{'':22}{shared:14}{shared_after:8}", flush=True)
    most = SLACK + LEAST * requests
    return shared_after <= shared and all(
        after[name].memory - one.memory <= most and after[name].files <= one.files
        for name, one in before.items()
    )


def held_by_all() -> dict[str, Held]:
    """Returns what this process and those of the session hold, by name."""
    ranks = [each for each in below(os.getpid()) if not list(below(each))]
    processes = {"owner": os.getpid(), **{f"rank {at}": each for at, each in enumerate(ranks)}}
    return {name: Held.of(process) for name, process in processes.items()}


def below(process: int) -> Iterator[int]:
    """Yields the processes that a process has started, and those that they have."""
    for thread in sorted(os.listdir(f"/proc/{process}/task")):
        for child in Path(f"/proc/{process}/task/{thread}/children").read_text().split():
            yield int(child)
            yield from below(int(child))


def shared_entries() -> int:
    """Returns how many names there are in shared memory."""
    return len(os.listdir(SHARED)) if SHARED.is_dir() else 0


def is_fast(build: Path, rounds: int) -> bool:
    """Prints what calls take beside the ranks alone; returns whether they are fast enough."""
    with (
        autopar.InferenceSession(build) as session,
        autopar.InferenceSession(build, max_batch=MOST_TOGETHER) as batching,
        Direct(build, RANKS) as direct,
        ThreadPoolExecutor(CALLERS) as pool,
    ):
        contenders = {
            "ranks alone": direct.run,
            "one caller": lambda numbers: seconds_each(session, numbers),
            "8 callers": lambda numbers: [seconds_of_all(session, pool, numbers)],
            "8 callers, batching": lambda numbers: [seconds_of_all(batching, pool, numbers)],
        }
        times = in_turns(contenders, rounds)
    alone, one = times["ranks alone"], times["one caller"]
    print(f"\n{'':22}{'p50 ms':>9}{'p99 ms':>9}")
    for name in ("ranks alone", "one caller"):
        print(f"{name:22}{percentile(times[name], 50):9.3f}{percentile(times[name], 99):9.3f}")
    ratio = median(one) / median(alone)
    print(f"ratio of p50, at most {LATENCY_BAR}: {ratio:.3f}")
    fast = [ratio <= LATENCY_BAR]
    print(f"\n{'':22}{'requests/s':>12}{'ratio':>8}")
    for name, taken in times.items():
        share = sum(alone) / sum(taken)
        print(f"{name:22}{rounds * ROUND / sum(taken):12.1f}{share:8.3f}", flush=True)
        fast.append(share >= THROUGHPUT_BAR or name == "one caller")
    print(f"with {CALLERS} callers, at least {THROUGHPUT_BAR}")
    return all(fast)


def in_turns(
    contenders: dict[str, Callable[[Sequence[int]], list[float]]], rounds: int
) -> dict[str, list[float]]:
    """Returns the seconds that each contender takes for the same requests, after a first turn."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        numbers = range(turn * ROUND, (turn + 1) * ROUND)
        for name, run in contenders.items():
            found = run(numbers)
            times[name] += found if turn else []
    return times


def seconds_each(session: autopar.InferenceSession, numbers: Sequence[int]) -> list[float]:
    """Returns how long each of some calls takes."""
    inputs = [feeds(number) for number in numbers]
    ends = [time.monotonic()]
    for each in inputs:
        session.run(None, each)
        ends.append(time.monotonic())
    return [end - start for start, end in pairwise(ends)]


def seconds_of_all(
    session: autopar.InferenceSession, pool: ThreadPoolExecutor, numbers: Sequence[int]
) -> float:
    """Returns how long calls from all threads of a pool take together."""
    inputs = [feeds(number) for number in numbers]
    start = time.monotonic()
    list(pool.map(lambda each: session.run(None, each), inputs))
    return time.monotonic() - start


def percentile(seconds: Sequence[float], percent: float) -> float:
    """Returns a percentile in milliseconds."""
    return float(np.percentile(seconds, percent)) * 1e3


if __name__ == "__main__":
    sys.exit(main())
