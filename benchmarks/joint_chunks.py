"""Sharding, recomputation and chunks decided together, beside one after the other.

    python benchmarks/joint_chunks.py                # predicted seconds of a step, on 4 processes
    python benchmarks/joint_chunks.py --measure      # and measured ones, where most is predicted

*Together* is `memory=`. What is decided first knows nothing of the rest:

splits, chunks    how parameters are split without a limit; then the rest, together
chunks, splits    what is cut for one device within as large a part of what it holds, how that is
                  split without a limit, and what is computed again
chunks, again     what is cut and computed again for one device; then how it is split, if one
                  device computes nothing again
again, splits     what is computed again and how it is split, and nothing is cut

Limits are parts of what the fastest plan without one holds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from joint import ORDERS, Task, arguments, chosen, measure, small_gpt2

import autopar
from autopar.base.errors import InvalidInputError
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, evaluate, peak_rank_timeline

PARTS = (0.6, 0.46)
"""Limits, as parts of what the fastest plan holds."""

TASKS: Mapping[str, Task] = {
    "GPT-2, 2 x 512, 16,000 words, batch 16 x 128": Task(
        lambda: small_gpt2(512, 16_000), 16, 128, "2x2"
    ),
    "GPT-2, 2 x 256, 32,000 words, batch 16 x 128": Task(
        lambda: small_gpt2(256, 32_000), 16, 128, "2x2"
    ),
}
"""What is trained, by name."""

FIRST = ("splits, chunks", "chunks, splits", "chunks, again", "again, splits")
TOGETHER = ORDERS[-1]

Compile = Callable[..., CompiledModel]


def compiled(task: Task, cluster: Cluster, mesh: str, **said: Any) -> CompiledModel:
    """Returns a training step."""
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    known: dict[str, Any] = {
        "mesh": mesh,
        "cluster": cluster,
        "optimizer": optimizer,
        "strategy": "auto",
    }
    if "plan" in said:
        del known["strategy"]
    return autopar.compile(model, task.batch(0), **known, **said)


def chunks_of(step: CompiledModel) -> dict[str, Any]:
    """Returns what a step cuts, as `compile` is told."""
    return {pin.pattern: (pin.dim, pin.parts) for pin in step.options.chunks or ()}


def layouts_of(step: CompiledModel) -> dict[str, Any]:
    """Returns how a step splits parameters, as `compile` is told."""
    program = step.completed
    ports = [port for port in program.signature.inputs if port.role == "parameter"]
    layouts = {port.label: program.main.values[port.name].dist for port in ports}
    return {label: layout.dims_mapping for label, layout in layouts.items() if layout is not None}


def seconds_of(step: CompiledModel) -> float:
    """Returns the predicted serialized seconds of a step."""
    return evaluate(step.partitioned, step.options.cluster).serialized_seconds


def peak_of(step: CompiledModel) -> int:
    """Returns the most that a rank holds."""
    return peak_rank_timeline(step.partitioned).peak_bytes


def orders(compile_on: Compile, mesh: str, free: CompiledModel, part: float) -> dict[str, Any]:
    """Returns what `compile` is told in each order of deciding, without those that don't fit.

    Args:
        compile_on: Compiles for a mesh.
        mesh: The mesh.
        free: The step without a limit.
        part: The limit, as a part of what that holds.
    """
    found: dict[str, Any] = {
        "splits, chunks": {"shard": layouts_of(free)},
        "again, splits": {"chunks": {}},
        TOGETHER: {},
    }
    try:
        alone = compile_on("1", memory=int(part * peak_of(compile_on("1"))))
    except InvalidInputError:
        return found
    chunks = chunks_of(alone)
    found["chunks, splits"] = {"plan": compile_on(mesh, chunks=chunks)}
    if seconds_of(alone) <= seconds_of(compile_on("1", chunks=chunks)):
        found["chunks, again"] = {"chunks": chunks, "activations": {"*": "save"}}
    return found


def within(compile_on: Compile, mesh: str, limit: int, **said: Any) -> CompiledModel | None:
    """Returns a step within a limit; None if it doesn't fit."""
    with tempfile.TemporaryDirectory() as folder:
        if "plan" in said:
            plan = Path(folder) / "plan.yaml"
            autopar.save_plan(said["plan"], plan)
            said = {"plan": plan}
        try:
            return compile_on(mesh, memory=limit, **said)
        except InvalidInputError:
            return None


Steps = tuple[CompiledModel, CompiledModel]
"""The best of deciding one after the other, and together."""


def predict(name: str, task: Task, cluster: Cluster) -> Steps | None:
    """Prints the rows of a model; returns the steps where deciding together gains most."""
    compile_on = partial(compiled, task, cluster)
    free = compile_on(task.mesh)
    print(f"\n{name} on {task.mesh}, predicted milliseconds for {cluster.name}")
    print(f"{'limit':>6}" + "".join(f"{each:>16}" for each in (*FIRST, TOGETHER)) + f"{'ratio':>8}")
    best, most = None, 0.0
    for part in PARTS:
        limit = int(part * peak_of(free))
        made = {
            order: within(compile_on, task.mesh, limit, **said)
            for order, said in orders(compile_on, task.mesh, free, part).items()
        }
        known = {order: (seconds_of(step), step) for order, step in made.items() if step}
        texts = (f"{1e3 * known[o][0]:.1f}" if o in known else "-" for o in (*FIRST, TOGETHER))
        ratio = ""
        if TOGETHER in known and len(known) > 1:
            least = min(
                (known[order] for order in FIRST if order in known), key=lambda each: each[0]
            )
            gain = least[0] / known[TOGETHER][0]
            ratio = f"{gain:.3f}"
            if gain > most:
                best, most = (least[1], known[TOGETHER][1]), gain
        print(f"{part:6}" + "".join(f"{text:>16}" for text in texts) + f"{ratio:>8}", flush=True)
    return best


def write_steps(steps: Steps, folder: Path) -> None:
    """Writes a build of each."""
    for order, step in zip(ORDERS, steps, strict=True):
        step.save(folder / order)


def main() -> None:
    """Predicts, and measures if asked to."""
    options = arguments(__doc__ or "", rounds=6)
    cluster = Cluster.load(options.cluster)
    for name, task in chosen(TASKS, options):
        best = predict(name, task, cluster)
        if options.measure and best is not None:
            measure(task, partial(write_steps, best), options)


if __name__ == "__main__":
    main()
