"""Sharding and recomputation decided together, beside one after the other.

    python benchmarks/joint.py                     # predicted seconds of a step, on 4 processes
    python benchmarks/joint.py --measure           # and measured ones, where most is predicted

*One after the other* is the fastest plan without a limit of memory, of which then as much is
computed again as it takes to fit. *Together* is `memory=`, the same search with the limit. Limits
are parts of what the fastest plan holds, among them the least that recomputation alone reaches.
What is measured is chosen by prediction: of each model the limit at which deciding together gains
most. Both programs then train in the same gloo processes, a step of each in turn (`step_time`).
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from language_models import gpt2, llama
from step_time import measured, table
from torch import Tensor, nn

import autopar
from autopar.annotate import apply_mesh, parse_mesh
from autopar.completion.problem.problem import Problem
from autopar.cost import Cluster
from autopar.frontend.torch import Recipe, capture
from autopar.partition.recompute import DoesNotFit, Recomputer
from autopar.planning.lowering import Lowering
from autopar.planning.planner import Planner
from autopar.planning.within_memory import Within
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer

PARTS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Limits, as parts of what the fastest plan holds."""

ROOM = 1.002
"""How much more than the least that recomputation reaches is a limit, too."""

WORLD = 4
VOCABULARY = 1024
ORDERS = "one after the other", "together"


@dataclass(frozen=True)
class Task:
    """A model to train.

    Attributes:
        make: Makes it.
        rows, length: Of a global batch of tokens.
        mesh: The processes.
    """

    make: Callable[[], nn.Module]
    rows: int
    length: int
    mesh: str

    def model(self) -> nn.Module:
        """Returns the model, with the same weights every time."""
        torch.manual_seed(0)
        return self.make()

    def batch(self, seed: int) -> dict[str, Tensor]:
        """Returns a batch."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, VOCABULARY, (self.rows, self.length), generator=generator)
        return {"input_ids": ids, "labels": ids}


def small_gpt2(hidden: int, words: int = VOCABULARY) -> nn.Module:
    """Returns a GPT-2 of two layers."""
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    sizes = {"n_embd": hidden, "n_layer": 2, "n_head": 8, "n_positions": 256}
    return gpt2(vocab_size=words, **sizes, **ends)


def small_llama(hidden: int) -> nn.Module:
    """Returns a Llama of two layers."""
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": hidden * 8 // 3,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "vocab_size": VOCABULARY,
    }
    return llama(sizes)


TASKS: Mapping[str, Task] = {
    "GPT-2, 2 x 768, batch 32 x 128": Task(lambda: small_gpt2(768), 32, 128, "4"),
    "GPT-2, 2 x 512, batch 16 x 128": Task(lambda: small_gpt2(512), 16, 128, "2x2"),
    "GPT-2, 2 x 768, batch 16 x 128": Task(lambda: small_gpt2(768), 16, 128, "2x2"),
    "Llama, 2 x 768, batch 32 x 128": Task(lambda: small_llama(768), 32, 128, "4"),
    "Llama, 2 x 768, batch 16 x 128": Task(lambda: small_llama(768), 16, 128, "2x2"),
}
"""What is trained, by name."""


@dataclass(frozen=True)
class Row:
    """A limit, and the predicted serialized seconds within it; infinite if nothing fits.

    Attributes:
        part: The limit, as a part of what the fastest plan holds.
        memory_bytes: The limit.
        seconds: One after the other, and together.
    """

    part: float
    memory_bytes: int
    seconds: tuple[float, float]

    @property
    def gain(self) -> float:
        """How many times longer it takes one after the other; 0 where that isn't possible."""
        apart, together = self.seconds
        return apart / together if math.isfinite(apart) else 0.0


def plans(task: Task, cluster: Cluster) -> Within:
    """Returns the plans of a training step."""
    mesh = parse_mesh(task.mesh)
    with torch.device("meta"):
        model = task.model()
    recipe = Recipe(optimizer=torch.optim.AdamW(model.parameters(), 1e-4))
    program = apply_mesh(capture(model, task.batch(0), recipe, mesh).program, mesh)
    problem = Problem.from_program(program, cluster)
    return Planner(problem, Lowering(cluster, problem.planner)).within


def rows(within: Within) -> Iterator[Row]:
    """Yields the rows of a model, the largest limit first."""
    base = within.base
    alone = Recomputer(base.ranks, within.cluster)
    least = alone.least_bytes
    limits = {int(base.peak_bytes * part) for part in PARTS} | {int(least * ROOM)}
    for limit in sorted(limits, reverse=True):
        apart = together = math.inf
        if least <= limit:
            apart = base.seconds + alone.within(limit).added_seconds
        try:
            together = within.fastest(limit).seconds
        except DoesNotFit:
            return
        yield Row(limit / base.peak_bytes, limit, (apart, together))


def predict(name: str, task: Task, cluster: Cluster) -> Row:
    """Prints the rows of a model; returns the one at which deciding together gains most."""
    begun = time.process_time()
    within = plans(task, cluster)
    base = within.base
    print(
        f"\n{name} on {task.mesh}: {base.peak_bytes / 2**20:.1f} MiB,"
        f" {1e3 * base.seconds:.1f} ms predicted for {cluster.name}"
    )
    print(f"  {'limit':>17}{ORDERS[0]:>24}{ORDERS[1]:>14}{'ratio':>8}", flush=True)
    best = None
    for row in rows(within):
        apart, together = (
            f"{1e3 * seconds:.1f} ms" if math.isfinite(seconds) else "does not fit"
            for seconds in row.seconds
        )
        ratio = f"{row.gain:.3f}" if row.gain else ""
        size = f"{row.part:.3f} {row.memory_bytes / 2**20:7.1f} MiB"
        print(f"  {size:>17}{apart:>24}{together:>14}{ratio:>8}", flush=True)
        best = row if best is None or row.gain > best.gain else best
    print(f"  {time.process_time() - begun:.1f} CPU-s, capture included")
    assert best is not None
    return best


def measure(task: Task, write: Callable[[Path], None], options: argparse.Namespace) -> None:
    """Prints the seconds of steps with both programs within a limit.

    Args:
        task: What is trained.
        write: Writes a build for each order of deciding into a folder.
        options: How often steps are measured.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
        batches = [task.batch(seed) for seed in range(options.warmup + options.rounds)]
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=rank_main, args=(rank, port, folder, batches, options.warmup))
            for rank in range(WORLD)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    if any(each.exitcode for each in ranks):
        raise SystemExit("a rank failed")


def write_builds(task: Task, limit: int, cluster: Cluster, folder: Path) -> None:
    """Writes a build for each order of deciding."""

    def compiled(**given: Any) -> autopar.CompiledModel:
        model = task.model()
        adamw = torch.optim.AdamW(model.parameters(), 1e-4)
        known: dict[str, Any] = {"mesh": task.mesh, "cluster": cluster, "optimizer": adamw}
        return autopar.compile(model, task.batch(0), **known, **given)

    autopar.save_plan(compiled(strategy="auto"), folder / "plan.yaml")
    compiled(plan=folder / "plan.yaml", memory=limit).save(folder / ORDERS[0])
    compiled(strategy="auto", memory=limit).save(folder / ORDERS[1])


def rank_main(
    rank: int, port: int, folder: Path, batches: Sequence[dict[str, Tensor]], warmup: int
) -> None:
    """Trains both in turn; the first rank prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    with ExitStack() as stack:
        steps = {}
        for name in ORDERS:
            joined = Processes(rank, WORLD, rank, WORLD, "127.0.0.1", port, prefix=name)
            steps[name] = stack.enter_context(open_trainer(folder / name, processes=joined)).step
        times = measured(steps, batches, warmup)
        dist.barrier()
    if rank == 0:
        print(table(times, [ORDERS]), flush=True)
    dist.destroy_process_group()


def arguments(description: str, rounds: int) -> argparse.Namespace:
    """Returns what was said on the command line.

    Args:
        description: Of the script.
        rounds: How many steps of each program are measured by default.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only models whose name begins so")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--rounds", type=int, default=rounds, help="measured steps of each program")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--cluster", default="cpu")
    return parser.parse_args()


def chosen(tasks: Mapping[str, Task], options: argparse.Namespace) -> Iterator[tuple[str, Task]]:
    """Yields the tasks that were named; all if none was."""
    for name, task in tasks.items():
        if not options.names or name.startswith(tuple(options.names)):
            yield name, task


def main() -> None:
    """Predicts, and measures if asked to."""
    options = arguments(__doc__ or "", rounds=15)
    cluster = Cluster.load(options.cluster)
    for name, task in chosen(TASKS, options):
        row = predict(name, task, cluster)
        if options.measure:
            measure(task, partial(write_builds, task, row.memory_bytes, cluster), options)


if __name__ == "__main__":
    main()
