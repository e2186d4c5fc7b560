"""Trains two matrix products with data, tensor and mixed parallelism, and compares the losses.

    python examples/two_matmuls.py

The model is written for one device. Each way to split it is said twice: by marks in the model's
code, and by the name of a preset. Every combination is compiled, trained by real processes (gloo,
on the CPU), and its losses are compared with those of plain PyTorch in one process.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopar
from autopar import ProcessMesh, annotate

STEPS, BATCH, WIDTH, HIDDEN = 10, 16, 32, 64
TOLERANCE = 1e-6
"""Of losses, relative: six digits."""


@dataclass(frozen=True)
class Case:
    """A way to split the model.

    Attributes:
        name: What it is called.
        mesh: The processes.
        preset: The strategy that splits the model in this way.
        x, w1, w2: The marks that do so: a dims_mapping each, or None for no mark.
    """

    name: str
    mesh: ProcessMesh
    preset: str
    x: list[str | None] | None = None
    w1: list[str | None] | None = None
    w2: list[str | None] | None = None


def cases() -> list[Case]:
    """Returns data, tensor and mixed parallelism on two and four processes."""
    found = []
    for count in (2, 4):
        dp = ProcessMesh(list(range(count)), ["dp"])
        tp = ProcessMesh(list(range(count)), ["tp"])
        found.append(Case(f"data x{count}", dp, "ddp:dp", x=["dp", None]))
        found.append(Case(f"tensor x{count}", tp, "tensor:tp", w1=[None, "tp"], w2=["tp", None]))
    mixed = ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"])
    marks = Case("mixed 2x2", mixed, "ddp:dp,tensor:tp", ["dp", None], [None, "tp"], ["tp", None])
    return [*found, marks]


class TwoMatmuls(nn.Module):
    """x @ w1 @ w2, marked as a case says where it is given."""

    def __init__(self, case: Case | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w1 = nn.Parameter(torch.randn(WIDTH, HIDDEN) * 0.1)
        self.w2 = nn.Parameter(torch.randn(HIDDEN, WIDTH) * 0.1)
        self.case = case

    def forward(self, x: Tensor) -> Tensor:
        w1: Tensor = self.w1
        w2: Tensor = self.w2
        if self.case is not None:
            mesh = self.case.mesh
            x = x if self.case.x is None else annotate.shard(x, mesh, self.case.x)
            w1 = w1 if self.case.w1 is None else annotate.shard(w1, mesh, self.case.w1)
            w2 = w2 if self.case.w2 is None else annotate.shard(w2, mesh, self.case.w2)
        return x @ w1 @ w2


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns the global batch of a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x, torch.tanh(x.flip(1))


def train_plainly() -> list[float]:
    """Trains in this process, without autopar."""
    model = TwoMatmuls()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        x, target = batch(step)
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def compile_case(case: Case, marked: bool, build: Path) -> None:
    """Compiles a case, split by its marks or by its preset."""
    model = TwoMatmuls(case if marked else None)
    compiled = autopar.compile(
        model,
        batch(0),
        mesh=case.mesh,
        loss=nn.MSELoss(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        strategy=None if marked else case.preset,
    )
    compiled.save(build)


def train_in_processes(build: Path, count: int) -> list[float]:
    """Starts a process per rank; rank 0 writes the losses."""
    losses = build.with_suffix(".json")
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    rank = [__file__, "--build", str(build), "--losses", str(losses)]
    subprocess.run([sys.executable, *torchrun, *rank], check=True)
    found: list[float] = json.loads(losses.read_text())
    return found


def train_rank(build: Path, losses: Path) -> None:
    """What each process does: the loop of the user's own script."""
    with autopar.load(build, backend="gloo") as trainer:
        found = [trainer.step(batch(step)).item() for step in range(STEPS)]
        if dist.get_rank() == 0:
            losses.write_text(json.dumps(found))


def compare() -> int:
    """Trains every case and returns how many differ from plain training."""
    expected = train_plainly()
    print(f"{'one process':24} loss {expected[0]:.6f} -> {expected[-1]:.6f}")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            for marked in (True, False):
                build = Path(folder) / "build"
                compile_case(case, marked, build)
                losses = train_in_processes(build, len(case.mesh.process_ids))
                pairs = zip(losses, expected, strict=True)
                same = all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in pairs)
                wrong += not same
                name = f"{case.name}, {'marks' if marked else 'preset'}"
                verdict = "equal to 6 digits" if same else "DIFFERENT"
                print(f"{name:24} loss {losses[0]:.6f} -> {losses[-1]:.6f}  {verdict}")
    return wrong


def main() -> int:
    """Compares, or is one rank of a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, help="be one rank of this build")
    parser.add_argument("--losses", type=Path, help="where rank 0 writes its losses")
    options = parser.parse_args()
    if options.build is None:
        return min(compare(), 1)
    train_rank(options.build, options.losses)
    return 0


if __name__ == "__main__":
    sys.exit(main())
