"""What it costs to leave sizes open: MiniLM compiled once for all batches and lengths.

    python benchmarks/open_sizes.py

Beside a build for one batch and length: CPU seconds of compiling it, import and weights included,
bytes of what is written without weights, and the time of a call, in turns. And beside its own calls
of a size that it knows, those of sizes that it has never seen: what they take more is what a new
size costs. Each compilation runs in a process of its own, forked when everything is imported and
the model has been compiled once for another mesh; the median of several counts.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
from compile_time import RANK_TABLE, model_file
from torch import Tensor

import autopar
from autopar.runtime.execute.session import Session

Dims = Mapping[str, int]
STATIC: Dims = {"batch_size": 8, "sequence_length": 128}
OPEN: Dims = {}
MESHES = ("1", "2x4", "64x64")
PRESET = "data:0,tensor:1"
STRATEGIES = {"1": ("none",), "2x4": (PRESET, "auto"), "64x64": (PRESET, "auto")}
NEW = range(3, 60)
"""Lengths that a session has never seen, in turn."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="compilations of each kind")
    parser.add_argument("--meshes", nargs="*", default=MESHES, help="for which to compile")
    parser.add_argument("--calls", type=int, default=200, help="pairs of calls")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        compiling(options.rounds, options.meshes)
        calling(Path(folder), options.calls)


def compiling(rounds: int, meshes: Sequence[str]) -> None:
    """Prints what compiling takes."""
    print(f"{'':38}{'static':>12}{'open':>12}{'ratio':>8}")
    compile_once("3x2", "auto", STATIC)
    compile_once("3x2", "auto", OPEN)
    # Whether a process collects what was there before its compilation is up to chance.
    gc.collect()
    gc.freeze()
    for mesh in meshes:
        for strategy in STRATEGIES[mesh]:
            turns = [
                [in_own_process(mesh, strategy, dims) for dims in (STATIC, OPEN)]
                for _ in range(rounds)
            ]
            for at, unit in enumerate(("CPU s", "bytes")):
                medians = (median(turn[kind][at] for turn in turns) for kind in (0, 1))
                row(f"mesh {mesh}, {strategy}, {unit}", *medians)


def compile_once(mesh: str, strategy: str, dims: Dims) -> tuple[float, float]:
    """Returns the CPU seconds of a compilation, and the bytes of its programs."""
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        start = time.process_time()
        autopar.compile_onnx(model_file(), build, mesh=mesh, strategy=strategy, dims=dims)
        seconds = time.process_time() - start
        kept = (path for path in build.rglob("*.pb") if path.name != RANK_TABLE)
        return seconds, sum(path.stat().st_size for path in kept)


def in_own_process(mesh: str, strategy: str, dims: Dims) -> tuple[float, float]:
    """Returns what `compile_once` does in a forked process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, mesh, strategy, dims))
    process.start()
    sender.close()
    found: tuple[float, float] = receiver.recv()
    process.join()
    return found


def _send(sender: Connection, mesh: str, strategy: str, dims: Dims) -> None:
    sender.send(compile_once(mesh, strategy, dims))


def calling(folder: Path, calls: int) -> None:
    """Prints what calls take."""
    static, free = (opened(folder / name, dims) for name, dims in (("s", STATIC), ("o", OPEN)))
    batch = feeds(*STATIC.values())
    pairs = [(seconds(static, batch), seconds(free, batch)) for _ in range(calls)]
    row(
        "a call at the size of both, ms", *(1e3 * median(each) for each in zip(*pairs, strict=True))
    )
    known, new = [], []
    for length in NEW:
        batch = feeds(1, length)
        new.append(seconds(free, batch))
        known.append(median(seconds(free, batch) for _ in range(5)))
    more = median(one - other for one, other in zip(new, known, strict=True))
    print(f"{'a call of one row, ms':38}{'known size':>12}{'new':>12}{'more':>8}")
    print(f"{'':38}{1e3 * median(known):12.3f}{1e3 * median(new):12.3f}{1e3 * more:8.3f}")


def opened(build: Path, dims: Dims) -> Callable[[Mapping[str, Tensor]], object]:
    """Returns what runs a build for one device in this process, after a first call."""
    autopar.compile_onnx(model_file(), build, mesh="1", dims=dims)
    session = Session(build)
    session.run(feeds(*STATIC.values()))
    return session.run


def feeds(batch: int, length: int) -> dict[str, Tensor]:
    """Returns inputs of a size."""
    ids = torch.randint(0, 1000, (batch, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def seconds(run: Callable[[Mapping[str, Tensor]], object], batch: Mapping[str, Tensor]) -> float:
    """Returns how long a call takes."""
    start = time.perf_counter()
    run(batch)
    return time.perf_counter() - start


def row(name: str, static: float, free: float) -> None:
    """Prints both, and their ratio."""
    print(f"{name:38}{static:12.4g}{free:12.4g}{free / static:8.3f}", flush=True)


if __name__ == "__main__":
    main()
