"""Models whose parts are put into stages, and one device that trains them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.cost import Cluster

Batch = tuple[Tensor, Tensor]

CPU = Cluster.load("cpu")
FREE_LINKS = replace(
    CPU,
    links=tuple(
        replace(each, alpha_seconds=1e-30, beta_seconds_per_byte=1e-30, collectives=())
        for each in CPU.links
    ),
)
"""Where nothing takes time to send."""


class Decoder(nn.Module):
    """Layers with a residual around each; a skip over all stages, and maybe a tied head."""

    def __init__(
        self, stages: int, layers: int = 4, tied: bool = False, skips: bool = False
    ) -> None:
        super().__init__()
        self.stages, self.skips = stages, skips
        self.tokens = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.head = nn.Linear(8, 16, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        first = x = self.tokens(ids) + torch.arange(8.0) / 8
        for at, layer in enumerate(self.layers):
            with annotate.pipeline_stage(at * self.stages // len(self.layers)):
                x = x + torch.tanh(layer(x))
        return self.head(x + first if self.skips else x)


def loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def batch_of(rows: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids, target = (torch.randint(0, 16, (rows, 5), generator=generator) for _ in range(2))
    return ids, target


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def compiled(model: nn.Module, microbatches: int, **options: object) -> autopar.CompiledModel:
    """Returns a pipeline of a training step, with two rows in a microbatch."""
    return autopar.compile(
        model,
        batch_of(2 * microbatches),
        loss=loss,
        optimizer=optimizer_of(model),
        accumulate=microbatches,
        **{"pipeline": "pp", **options},  # type: ignore[arg-type]
    )


def on_one_device(model: nn.Module, microbatches: int, steps: int = 3) -> list[float]:
    """Returns the losses of a loop that accumulates gradients."""
    model = copy.deepcopy(model)
    optimizer, losses = optimizer_of(model), []
    for _ in range(steps):
        optimizer.zero_grad()
        parts = [part.chunk(microbatches) for part in batch_of(2 * microbatches)]
        total = 0.0
        for ids, target in zip(*parts, strict=True):
            value = loss(model(ids), target) / microbatches
            value.backward()
            total += value.item()
        optimizer.step()
        losses.append(total)
    return losses


def on_whole_batches(
    model: nn.Module, batch: Batch, steps: int = 3, clip: float | None = None
) -> list[float]:
    """Returns the losses of steps that don't cut their batch."""
    model = copy.deepcopy(model)
    optimizer, losses = optimizer_of(model), []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model(batch[0]), batch[1])
        value.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(value.item())
    return losses


def on_virtual_mesh(build: Path, batch: Batch, steps: int = 3) -> list[float]:
    """Returns the losses of a build whose ranks all run here."""
    with autopar.load(build, virtual=True) as trainer:
        return [float(trainer.step(batch)) for _ in range(steps)]


def moved(model: autopar.CompiledModel) -> Sequence[tuple[str, int]]:
    """Returns the phases and microbatches of what stages send to one another."""
    ops = [op for program in model.deployment.programs for op in program.main.ops]
    return [(op.phase, op.microbatch) for op in ops if op.kind.startswith("comm.")]
