"""Models whose parts are marked for slices of a mesh, and what one device makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import ProcessMesh
from autopar.annotate import shard
from autopar.compiled import CompiledModel

WIDTH = 8
PAIR = ProcessMesh([0, 1], ["pp"])
SQUARE = ProcessMesh([[0, 1], [2, 3]], ["pp", "tp"])
CUBE = ProcessMesh([[[0, 1], [2, 3]], [[4, 5], [6, 7]]], ["pp", "dp", "tp"])
THREE = ProcessMesh([0, 1, 2], ["pp"])
TALL = ProcessMesh([[0, 1], [2, 3], [4, 5]], ["pp", "tp"])

Batch = tuple[Tensor, Tensor]


def sent(x: Tensor, mesh: ProcessMesh, *mapping: str) -> Tensor:
    """Returns a tensor on a mesh, its first dimensions split over these axes."""
    axes = [axis if axis in mesh.dim_names else None for axis in mapping]
    return shard(x, mesh, [*axes, *([None] * (x.ndim - len(axes)))])


class Stages(nn.Module):
    """Layers one after another, each on a slice."""

    def __init__(self, places: Sequence[ProcessMesh], *mapping: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in places)
        self.places = places
        self.mapping = mapping

    def forward(self, x: Tensor) -> Tensor:
        for layer, place in zip(self.layers, self.places, strict=True):
            x = torch.tanh(layer(sent(x, place, *self.mapping)))
        return x


class Towers(nn.Module):
    """Two encoders side by side, joined by what they have in common."""

    def __init__(self, left: ProcessMesh, right: ProcessMesh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left = nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH))
        self.right = nn.Sequential(nn.Linear(WIDTH, 10), nn.Tanh(), nn.Linear(10, WIDTH))
        self.scale = nn.Parameter(torch.ones(()))
        self.places = left, right

    def forward(self, x: Tensor) -> Tensor:
        image = F.normalize(self.left(sent(x[0], self.places[0])), dim=-1)
        text = F.normalize(self.right(sent(x[1], self.places[1])), dim=-1)
        return image @ text.t() * self.scale


def batches(count: int, *shape: int) -> list[Batch]:
    """Returns inputs of a shape, with targets."""
    drawn = torch.Generator().manual_seed(1)
    return [
        (torch.randn(shape, generator=drawn), torch.randn(shape[-2:], generator=drawn))
        for _ in range(count)
    ]


def compiled(model: nn.Module, mesh: ProcessMesh, batch: Batch, **options: object) -> CompiledModel:
    """Returns a training step of a model with AdamW."""
    return autopar.compile(
        model,
        batch,
        mesh=mesh,
        loss=F.mse_loss,
        optimizer=adamw(model),
        **{"strategy": None, **options},  # type: ignore[arg-type]
    )


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """Returns an optimizer that doesn't blow rounding up to full steps."""
    return torch.optim.AdamW(model.parameters(), 0.01, eps=1e-3)


def saved(model: CompiledModel, folder: Path) -> Path:
    """Writes a build and returns its folder."""
    model.save(folder)
    return folder


def trained(model: nn.Module, given: Sequence[Batch], clip: float | None = None) -> list[float]:
    """Trains a model on one device and returns the losses."""
    optimizer = adamw(model)
    losses = []
    for x, target in given:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses
