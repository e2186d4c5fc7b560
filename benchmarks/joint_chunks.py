"""Sharding, recomputation and chunks decided together, beside one after the other.

    python benchmarks/joint_chunks.py                # predicted seconds of a step, on 4 processes
    python benchmarks/joint_chunks.py --measure      # and measured ones, where most is predicted

*Together* is `memory=`. What is decided first knows nothing of the rest: how to split without a
limit, what to cut for one device within as large a part of what it holds, nothing to cut at all.
What is left is decided together. Limits are parts of what the fastest plan without one holds.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from joint import Task, small_gpt2

import autopar
from autopar.base.errors import InvalidInputError
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, evaluate, peak_rank_timeline

PARTS = (0.6, 0.45, 0.35, 0.3, 0.25)
"""Limits, as parts of what the fastest plan holds."""

ORDERS = ("splits first", "chunks first", "no chunks", "together")

TASKS: Mapping[str, Task] = {
    "A": Task(lambda: small_gpt2(768, 1024), 32, 128, "4"),
    "B": Task(lambda: small_gpt2(512, 16_000), 16, 128, "4"),
    "C": Task(lambda: small_gpt2(512, 8_000), 16, 256, "2x2"),
}
"""What is trained, by name."""


def compiled(task: Task, cluster: Cluster, mesh: str, **said: Any) -> CompiledModel:
    """Returns a training step."""
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return autopar.compile(
        model, task.batch(0), mesh=mesh, cluster=cluster, optimizer=optimizer, **said
    )


def chunks_of(step: CompiledModel) -> dict[str, Any]:
    """Returns what a step cuts, as `compile` is told."""
    return {pin.pattern: (pin.dim, pin.parts) for pin in step.options.chunks or ()}


def layouts_of(step: CompiledModel) -> dict[str, Any]:
    """Returns how a step splits parameters, as `compile` is told."""
    values = step.completed.main.values
    return {
        port.label: values[port.name].dist.dims_mapping
        for port in step.completed.signature.inputs
        if port.role == "parameter"
    }


def seconds_of(step: CompiledModel) -> float:
    """Returns the predicted serialized seconds of a step."""
    return evaluate(step.partitioned, step.options.cluster).serialized_seconds


def orders(task: Task, cluster: Cluster, part: float) -> dict[str, CompiledModel]:
    """Returns what each order of deciding makes of a limit, without those that don't fit."""
    free = compiled(task, cluster, task.mesh, strategy="auto")
    alone = peak_rank_timeline(compiled(task, cluster, "1").partitioned).peak_bytes
    limit = int(part * peak_rank_timeline(free.partitioned).peak_bytes)
    found: dict[str, CompiledModel] = {}
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.yaml"
        autopar.save_plan(free, plan)
        said: dict[str, dict[str, Any]] = {
            "splits first": {"strategy": "auto", "shard": layouts_of(free)},
            "no chunks": {"strategy": "auto", "chunks": {}},
            "together": {"strategy": "auto"},
        }
        try:
            cut = chunks_of(compiled(task, cluster, "1", memory=int(part * alone)))
            said["chunks first"] = {"strategy": "auto", "chunks": cut}
        except InvalidInputError:
            pass
        for name, options in said.items():
            try:
                found[name] = compiled(task, cluster, task.mesh, memory=limit, **options)
            except InvalidInputError as error:
                print(name, str(error)[:150])
    return found


def predict(name: str, task: Task, cluster: Cluster) -> float:
    """Prints the rows of a model; returns the limit at which deciding together gains most."""
    print(f"\n{name} on {task.mesh}, predicted milliseconds for {cluster.name}")
    print(f"{'limit':>6}" + "".join(f"{order:>16}" for order in ORDERS) + f"{'ratio':>8}")
    best, gains = PARTS[0], 0.0
    for part in PARTS:
        steps = orders(task, cluster, part)
        seconds = {order: seconds_of(step) for order, step in steps.items()}
        if "together" not in seconds:
            return best
        texts = (f"{1e3 * seconds[o]:.1f}" if o in seconds else "-" for o in ORDERS)
        others = [seconds[order] for order in seconds if order != "together"]
        gain = min(others, default=math.nan) / seconds["together"]
        print(f"{part:6}" + "".join(f"{text:>16}" for text in texts) + f"{gain:8.3f}", flush=True)
        print({o: (len(chunks_of(s)), max([v[1] for v in chunks_of(s).values()], default=1)) for o, s in steps.items()})
        best, gains = (part, gain) if gain > gains else (best, gains)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only models whose name begins so")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--cluster", default="cpu")
    options = parser.parse_args()
    cluster = Cluster.load(options.cluster)
    for name, task in TASKS.items():
        if not options.names or name.startswith(tuple(options.names)):
            predict(name, task, cluster)


if __name__ == "__main__":
    main()
