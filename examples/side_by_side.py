"""Trains a model in this process, and a build of it in processes that torchrun starts.

What the examples that compare the two have in common; each of them is also the script that every
process runs.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

import autopar

MakeBatch = Callable[[int], tuple[Any, Tensor]]
"""The global batch of a step: inputs and target."""


def train_plainly(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
    batch: MakeBatch,
    steps: int,
) -> list[float]:
    """Trains in this process, without autopar, and returns the losses."""
    losses = []
    for step in range(steps):
        inputs, target = batch(step)
        found = loss(model(*inputs) if isinstance(inputs, tuple) else model(inputs), target)
        optimizer.zero_grad()
        found.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(found.item())
    return losses


def train_in_processes(script: str, build: Path, count: int) -> list[float]:
    """Starts a process per rank, which runs the example, and returns the losses."""
    losses = build.with_suffix(".json")
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    rank = [script, "--build", str(build), "--losses", str(losses)]
    subprocess.run([sys.executable, *torchrun, *rank], check=True)
    found: list[float] = json.loads(losses.read_text())
    return found


def train_rank(build: Path, losses: Path, batch: MakeBatch, steps: int) -> None:
    """What each process does: the loop of the user's own script. Rank 0 writes the losses."""
    with autopar.load(build, backend="gloo") as trainer:
        found = [trainer.step(batch(step)).item() for step in range(steps)]
        if dist.get_rank() == 0:
            losses.write_text(json.dumps(found))


def are_equal(losses: Sequence[float], expected: Sequence[float], tolerance: float) -> bool:
    """Returns whether losses are equal, up to a relative error."""
    pairs = zip(losses, expected, strict=True)
    return all(math.isclose(a, b, rel_tol=tolerance) for a, b in pairs)


def compare_losses(
    script: str,
    step: autopar.CompiledModel,
    processes: int,
    expected: Sequence[float],
    tolerance: float,
) -> int:
    """Trains a step in processes, and prints its losses beside those of one; returns 1 if unequal.

    Args:
        script: The example.
        step: The step.
        processes: How many its mesh has.
        expected: The losses of one process.
        tolerance: How much of a loss may be rounding.
    """
    print(step.summary().partition("\n\nreplicated")[0], end="\n\n")
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        step.save(build)
        losses = train_in_processes(script, build, processes)
    same = are_equal(losses, expected, tolerance)
    print(f"1 process    loss {expected[0]:.6f} -> {expected[-1]:.6f}")
    print(f"{processes} processes  loss {losses[0]:.6f} -> {losses[-1]:.6f}")
    print("equal" if same else "DIFFERENT")
    return int(not same)


def run(description: str | None, compare: Callable[[], int], batch: MakeBatch, steps: int) -> int:
    """Compares, or is one rank of a build. Returns the exit code.

    Args:
        description: The example's own docstring.
        compare: Trains in both ways and returns how many losses differ.
        batch: The batches.
        steps: How many there are.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--build", type=Path, help="be one rank of this build")
    parser.add_argument("--losses", type=Path, help="where rank 0 writes its losses")
    options = parser.parse_args()
    if options.build is None:
        return min(compare(), 1)
    train_rank(options.build, options.losses, batch, steps)
    return 0
