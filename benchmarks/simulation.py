"""Predicted against measured: does the plan that is predicted to be faster run faster?

    python benchmarks/simulation.py                    # 4 and 8 gloo processes on this host

For each number of processes this machine is calibrated with as many processes at once
(`autopar calibrate --processes N`), training steps of small models are compiled in several ways,
and pairs of them are chosen that are predicted to differ by at least 20%: for each number of
processes the first five in the order of the list below, before anything is measured. Then all of
them train, one step of each in turn, so whatever else the machine does meets all alike. A step
takes as long as the slowest rank, and the median over the rounds counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from step_contenders import Size, blocks
from torch import Tensor, nn

import autopar
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, evaluate
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer

APART = 1.2
"""How much longer the slower plan of a pair is predicted to take, at least."""

PAIRS = 5
"""Pairs for each number of processes."""

PLANS: Mapping[int, Sequence[tuple[str, str]]] = {
    4: (
        ("dp=4", "data:dp"),
        ("tp=4", "tensor:tp"),
        ("dp=4", "fsdp:dp"),
        ("dp=2,tp=2", "data:dp,tensor:tp"),
    ),
    8: (
        ("dp=8", "data:dp"),
        ("tp=8", "tensor:tp"),
        ("dp=8", "fsdp:dp"),
        ("dp=4,tp=2", "data:dp,tensor:tp"),
    ),
}
"""Meshes and strategies, by the number of processes."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Model:
    """A model to train.

    Attributes:
        make: Makes it.
        batch: A global batch: the input and what the output is to be.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]


def mlp(size: int, layers: int) -> nn.Sequential:
    """Returns a perceptron with hidden layers four times as wide as its input."""
    parts = [
        nn.Sequential(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
        for _ in range(layers)
    ]
    return nn.Sequential(*parts)


def same(*shape: int) -> Batch:
    """Returns an input, and as much to learn."""
    return torch.randn(*shape), torch.randn(*shape)


GPT = Size(layers=2, hidden=128, heads=8, batch=16, sequence=64)
MODELS: Mapping[str, Model] = {
    "wide MLP": Model(lambda: mlp(384, 2), lambda: same(64, 384)),
    "long-batch MLP": Model(lambda: mlp(64, 2), lambda: same(8192, 64)),
    "GPT": Model(lambda: blocks(GPT), lambda: same(GPT.batch, GPT.sequence, GPT.hidden)),
}


@dataclass(frozen=True)
class Plan:
    """A model compiled in one way.

    Attributes:
        name: The model, mesh and strategy.
        model: The model's name.
        predicted_seconds: Of a step, with sums beside what doesn't wait for them.
        compiled: The programs.
    """

    name: str
    model: str
    predicted_seconds: float
    compiled: CompiledModel


def plans(world: int, cluster: Cluster) -> list[Plan]:
    """Compiles every model in every way for as many processes."""
    found = []
    for name, model in MODELS.items():
        for mesh, strategy in PLANS[world]:
            torch.manual_seed(0)
            module = model.make()
            compiled = autopar.compile(
                module,
                model.batch(),
                mesh=mesh,
                strategy=strategy,
                cluster=cluster,
                loss=nn.functional.mse_loss,
                optimizer=torch.optim.SGD(module.parameters(), lr=1e-3),
            )
            evaluation = evaluate(compiled.partitioned, cluster)
            label = f"{name} on {mesh} as {strategy}"
            found.append(Plan(label, name, evaluation.overlapped_seconds, compiled))
    return found


def chosen(found: Sequence[Plan]) -> list[tuple[Plan, Plan]]:
    """Returns pairs of plans of one model, the one predicted to be faster first.

    Models take turns, so that pairs are of all of them.
    """
    by_model = [
        [
            (a, b) if a.predicted_seconds < b.predicted_seconds else (b, a)
            for a, b in combinations([plan for plan in found if plan.model == name], 2)
        ]
        for name in MODELS
    ]
    apart = [
        [pair for pair in pairs if pair[1].predicted_seconds >= APART * pair[0].predicted_seconds]
        for pairs in by_model
    ]
    turns = [pairs[at] for at in range(len(found)) for pairs in apart if at < len(pairs)]
    return turns[:PAIRS]


def measured(names: Sequence[str], folder: Path, world: int, rounds: int) -> dict[str, float]:
    """Returns the median seconds of a step of each plan."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    ranks = [
        context.Process(target=rank_main, args=(rank, world, port, names, folder, rounds, sending))
        for rank in range(world)
    ]
    for each in ranks:
        each.start()
    sending.close()
    try:
        times: dict[str, float] = receiving.recv()
    except EOFError:
        raise SystemExit("a rank failed") from None
    for each in ranks:
        each.join()
    return times


def rank_main(
    rank: int,
    world: int,
    port: int,
    names: Sequence[str],
    folder: Path,
    rounds: int,
    pipe: Connection,
) -> None:
    """Trains every plan in turn; the first rank sends the medians."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    times: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        steps = {}
        for at, name in enumerate(names):
            joined = Processes(rank, world, rank, world, "127.0.0.1", port, prefix=str(at))
            trainer = open_trainer(folder / str(at), processes=joined)
            steps[name] = stack.enter_context(trainer).step
        for turn in range(rounds):
            for name in names:
                torch.manual_seed(turn)
                batch = MODELS[name.partition(" on ")[0]].batch()
                dist.barrier()
                begin = time.perf_counter()
                steps[name](batch)
                slowest = torch.tensor(time.perf_counter() - begin)
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                times[name].append(slowest.item())
        dist.barrier()
    if rank == 0:
        pipe.send({name: statistics.median(each[2:]) for name, each in times.items()})
    dist.destroy_process_group()


def simulate(world: int, rounds: int) -> tuple[int, int]:
    """Prints how predicted and measured seconds compare; returns how many pairs agree, of how many.

    Args:
        world: Number of processes.
        rounds: How often each plan does a step.
    """
    calibration = autopar.calibrate(processes=world)
    assert calibration is not None
    print(f"{calibration}\n", flush=True)
    pairs = chosen(plans(world, calibration.cluster))
    used = {plan.name: plan for pair in pairs for plan in pair}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for at, plan in enumerate(used.values()):
            plan.compiled.save(folder / str(at))
        times = measured(list(used), folder, world, rounds)
    print(f"{'predicted to be faster':42}{'than':42}{'predicted':>10}{'measured':>10}")
    agreeing = 0
    for fast, slow in pairs:
        predicted = slow.predicted_seconds / fast.predicted_seconds
        ratio = times[slow.name] / times[fast.name]
        agreeing += ratio > 1
        verdict = "" if ratio > 1 else "  other way round"
        print(f"{fast.name:42}{slow.name:42}{predicted:9.2f}x{ratio:9.2f}x{verdict}")
    print(f"\n{'':42}{'predicted':>10}{'measured':>10}  ms per step")
    for plan in used.values():
        both = plan.predicted_seconds * 1e3, times[plan.name] * 1e3
        print(f"{plan.name:42}{both[0]:10.1f}{both[1]:10.1f}")
    print(flush=True)
    return agreeing, len(pairs)


def main() -> None:
    """Compares on 4 and on 8 processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--processes", type=int, action="append", choices=sorted(PLANS))
    options = parser.parse_args()
    totals = [simulate(world, options.rounds) for world in options.processes or sorted(PLANS)]
    agreeing, pairs = (sum(each) for each in zip(*totals, strict=True))
    print(f"{agreeing} of {pairs} pairs are measured in the predicted order")


if __name__ == "__main__":
    main()
