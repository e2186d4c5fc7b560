"""Memory against time: plans of recomputation, ours beside torch's and per-layer checkpointing.

    python benchmarks/recompute.py                    predicted, for GPT-2 small and ResNet-50
    python benchmarks/recompute.py --measure          step times of a small GPT-2 on this machine

Every peer's plan is priced by the same evaluator on the same program. Then ours is made for as
much memory as the peer's plan takes, so the seconds compare at equal peaks. Measured plans run in
the same executor, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import language_models
import torch
from recompute_peers import TorchPlans, layer_plan

import autopar
from autopar.compiled import CompiledModel
from autopar.cost import Cluster
from autopar.mapping.deploy import deploy
from autopar.partition.recompute.choice import Choice, measure
from autopar.partition.recompute.copies import write_copies
from autopar.partition.recompute.replay import replay
from autopar.partition.recompute.tape import Tape, tape_of
from autopar.partition.recompute.way import NOTHING, Point, Way

BUDGETS = tuple(tenth / 10 for tenth in range(10, -1, -1))
WARM = 1


@dataclass(frozen=True)
class Model:
    """A model and a batch to train it on."""

    module: torch.nn.Module
    batch: Mapping[str, torch.Tensor]


def gpt2(batch: int, length: int, meta: bool = True, **sizes: int) -> Model:
    """Returns a GPT-2, small by default."""
    torch.manual_seed(0)
    with torch.device("meta" if meta else "cpu"):
        module = language_models.gpt2(**sizes)
    ids = torch.randint(0, sizes.get("vocab_size", 50257), (batch, length))
    return Model(module, {"input_ids": ids, "labels": ids})


def resnet50(batch: int) -> Model:
    """Returns a ResNet-50."""
    from transformers import ResNetConfig, ResNetForImageClassification

    with torch.device("meta"):
        module = ResNetForImageClassification(ResNetConfig()).train()
    labels = torch.zeros(batch, dtype=torch.long)
    return Model(module, {"pixel_values": torch.zeros(batch, 3, 224, 224), "labels": labels})


PREDICTED: Mapping[str, Callable[[], Model]] = {
    "GPT-2 small, batch 4 x 512": lambda: gpt2(4, 512),
    "ResNet-50, batch 16": lambda: resnet50(16),
}


def compiled(model: Model, cluster: Cluster) -> CompiledModel:
    """Returns a training step on one device."""
    return autopar.compile(
        model.module,
        dict(model.batch),
        mesh="1",
        optimizer=torch.optim.AdamW(model.module.parameters(), 1e-4),
        clip_grad_norm=1.0,
        cluster=cluster,
    )


def peers(tape: Tape) -> Iterator[tuple[str, Way]]:
    """Yields the plans of others; torch's once where budgets give the same one."""
    yield "each layer", layer_plan(tape)
    torch_plans, seen = TorchPlans(tape), set()
    for budget in BUDGETS:
        plan = torch_plans.plan(budget)
        if plan not in seen:
            seen.add(plan)
            yield f"torch, budget {budget}", plan


def predict(title: str, found: CompiledModel, cluster: Cluster) -> None:
    """Prints the curve of plans, and the peers beside it."""
    tape = tape_of(found.partitioned, cluster)
    begun = time.process_time()
    choice = Choice(tape)
    smallest = choice.smallest
    most, step = choice.unconstrained.peak_bytes, sum(tape.seconds)
    print(f"\n{title}: {most / 2**20:.1f} MiB, {1e3 * step:.2f} ms predicted on {cluster.name}")
    for part in (*range(20, 3, -1), None):
        limit = smallest.peak_bytes if part is None else most * part // 20
        point = choice.fastest(limit)
        if point is not None:
            print(f"  limit {limit / most:5.3f}  {_shown(point, choice, step)}")
    print(f"  {time.process_time() - begun:.1f} CPU-s for all of these")
    print(f"  {'others':20} {'their plan':>26}   ours in as much memory")
    for name, plan in peers(tape):
        theirs = measure(tape, plan)
        ours = choice.fastest(theirs.peak_bytes)
        shown = _shown(ours, choice, step) if ours is not None else "none"
        print(f"  {name:20} {_shown(theirs, choice, step)}   {shown}")


def _shown(point: Point, choice: Choice, step: float) -> str:
    part = point.peak_bytes / choice.unconstrained.peak_bytes
    return f"peak {part:5.3f}  time +{100 * point.added_seconds / step:5.2f}%"


def measured(found: CompiledModel, model: Model, cluster: Cluster, rounds: int) -> None:
    """Prints the seconds of steps with each peer's plan, and with ours in as much memory."""
    tape = tape_of(found.partitioned, cluster)
    choice = Choice(tape)
    plans: dict[str, Way] = {"nothing again": NOTHING}
    for name, plan in peers(tape):
        ours = choice.fastest(measure(tape, plan).peak_bytes)
        if ours is not None and ours.way.repeated:
            plans[name] = plan
            plans[f"ours for {name}"] = ours.way
    with ExitStack() as stack:
        steps = {name: _trainer(found, tape, plan, cluster, stack) for name, plan in plans.items()}
        times: dict[str, list[float]] = {name: [] for name in plans}
        losses: dict[str, list[float]] = {name: [] for name in plans}
        for number in range(WARM + rounds):
            for name, step in steps.items():
                begun = time.process_time()
                losses[name].append(step(dict(model.batch)).item())
                if number >= WARM:
                    times[name].append(time.process_time() - begun)
    base = statistics.median(times["nothing again"])
    print("\nMeasured, CPU-ms a step (median):")
    for name, plan in plans.items():
        point, median = measure(tape, plan), statistics.median(times[name])
        same = "" if losses[name] == losses["nothing again"] else "  LOSSES DIFFER"
        print(
            f"  {name:28} {_shown(point, choice, sum(tape.seconds))}"
            f"   measured {1e3 * median:7.1f} ({100 * (median / base - 1):+6.2f}%){same}"
        )


def _trainer(
    found: CompiledModel, tape: Tape, plan: Way, cluster: Cluster, stack: ExitStack
) -> Callable[[Any], torch.Tensor]:
    main = write_copies(tape, replay(tape, plan, range(len(tape.ops))))
    program = found.partitioned.with_main(main)
    changed = replace(found, partitioned=program, deployment=deploy(program, cluster))
    build = stack.enter_context(tempfile.TemporaryDirectory())
    changed.save(f"{build}/build")
    step: Callable[[Any], torch.Tensor] = stack.enter_context(
        autopar.load(f"{build}/build", virtual=True)
    ).step
    return step


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--rounds", type=int, default=15, help="measured steps of each plan")
    parser.add_argument("--cluster", default="h100")
    arguments = parser.parse_args()
    cluster = Cluster.load(arguments.cluster)
    if not arguments.measure:
        for title, make in PREDICTED.items():
            predict(title, compiled(make(), cluster), cluster)
        return
    torch.set_num_threads(1)
    here = Cluster.load("cpu")
    model = gpt2(8, 128, meta=False, n_layer=6, n_embd=256, n_head=8, vocab_size=1024)
    found = compiled(model, here)
    predict("A small GPT-2, batch 8 x 128", found, here)
    measured(found, model, here, arguments.rounds)


if __name__ == "__main__":
    main()
