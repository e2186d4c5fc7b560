"""Trains two matrix products with data, tensor and mixed parallelism, and compares the losses.

    python examples/two_matmuls.py

The model is written for one device. Each way to split it is said twice: by marks in the model's
code, and by the name of a preset. Every combination is compiled, trained by real processes (gloo,
on the CPU), and its losses are compared with those of plain PyTorch in one process.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from side_by_side import are_equal, run, train_in_processes, train_plainly
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


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """Returns the optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def compile_case(case: Case, marked: bool, build: Path) -> None:
    """Compiles a case, split by its marks or by its preset."""
    model = TwoMatmuls(case if marked else None)
    compiled = autopar.compile(
        model,
        batch(0),
        mesh=case.mesh,
        loss=nn.MSELoss(),
        optimizer=adamw(model),
        strategy=None if marked else case.preset,
    )
    compiled.save(build)


def compare() -> int:
    """Trains every case and returns how many differ from plain training."""
    model = TwoMatmuls()
    expected = train_plainly(model, adamw(model), nn.functional.mse_loss, batch, STEPS)
    print(f"{'one process':24} loss {expected[0]:.6f} -> {expected[-1]:.6f}")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            for marked in (True, False):
                build = Path(folder) / "build"
                compile_case(case, marked, build)
                losses = train_in_processes(__file__, build, case.mesh.size)
                same = are_equal(losses, expected, TOLERANCE)
                wrong += not same
                name = f"{case.name}, {'marks' if marked else 'preset'}"
                verdict = "equal to 6 digits" if same else "DIFFERENT"
                print(f"{name:24} loss {losses[0]:.6f} -> {losses[-1]:.6f}  {verdict}")
    return wrong


if __name__ == "__main__":
    sys.exit(run(__doc__, compare, batch, STEPS))
