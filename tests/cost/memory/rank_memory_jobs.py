"""What tests of ranks' memory run in real processes; kept apart so that these can import it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from autopar.analysis.profiling import profile_compiled
from autopar.compiled import CompiledModel
from autopar.cost import Cluster
from autopar.ir.builds.files import read_build
from autopar.modules import compile
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer
from tests.judges.tracking import Tracking

BATCH, WIDTH, HIDDEN, LAYERS, CLASSES = 16, 128, 512, 3, 64


class Mlp(nn.Module):
    """Residual blocks of two products, with norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.ups = nn.ModuleList(nn.Linear(WIDTH, HIDDEN) for _ in range(LAYERS))
        self.downs = nn.ModuleList(nn.Linear(HIDDEN, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(torch.nn.functional.gelu(up(norm(x))))
        found: torch.Tensor = self.head(x)
        return found


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(BATCH, WIDTH), torch.randint(CLASSES, (BATCH,))


def compile_step(
    mesh: str, strategy: str, memory: int | None = None, **options: Any
) -> CompiledModel:
    """Compiles a step."""
    torch.manual_seed(0)
    model = Mlp()
    return compile(
        model,
        batch(),
        mesh=mesh,
        strategy=strategy,
        loss=cross_entropy,
        optimizer=torch.optim.AdamW(model.parameters(), 1e-3),
        memory=memory,
        **options,
    )


def build(folder: Path, mesh: str, strategy: str) -> int:
    """Compiles a step and returns the predicted peak of the rank that holds most."""
    compile_step(mesh, strategy).save(folder)
    found = read_build(folder)
    (profile,) = profile_compiled(found.serial, found.deployment, Cluster.load("cpu"))
    return profile.peak_bytes


def train_tracked(processes: Processes, folder: str) -> int:
    """Returns the peak of a rank's second step."""
    given = batch()
    with open_trainer(folder, processes=processes) as trainer:
        trainer.step(given)
        stored = next(iter(trainer.ranks.stored.values()))
        with Tracking([*stored.values(), *given]) as seen:
            trainer.step(given)
    return seen.peak_bytes
