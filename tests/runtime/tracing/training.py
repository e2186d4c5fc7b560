"""A training build of a few layers, and what real processes do with it under a trace."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import autopar
from autopar.runtime.job.processes import Processes
from autopar.runtime.tracing.tracer import Trace

BATCH = (torch.linspace(-1, 1, 8 * 16).reshape(8, 16), torch.zeros(8, 4))


class Net(nn.Module):
    """Two products, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the loss."""
        out: Tensor = self.down(torch.nn.functional.gelu(self.up(x)))
        return (out - y).square().mean()


def training_build(folder: Path, mesh: str, strategy: str = "auto", **options: object) -> Path:
    """Writes a build of a training step, and returns its folder."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = autopar.compile(
        model, BATCH, mesh=mesh, strategy=strategy, optimizer=optimizer, **options
    )
    step.save(folder / "build")
    return folder / "build"


def train_traced(processes: Processes, build: Path, trace: Trace | None, steps: int) -> list[float]:
    """Trains; returns the losses."""
    with autopar.load(build, processes=processes, trace=trace) as trainer:
        return [trainer.step(BATCH).item() for _ in range(steps)]
