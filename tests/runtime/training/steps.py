"""A small training step as a build, and the same step under plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from autopar.compiled import CompiledModel
from autopar.modules import compile

BATCH, WIDTH, HIDDEN, CLASSES = 6, 4, 8, 5
MEGATRON = {"up.weight": ["tp", None], "down.weight": [None, "tp"]}
DATA = {"x": ["dp", None], "target": ["dp", None]}

Batch = tuple[Tensor, Tensor]
Layout = tuple[str, str, dict[str, list[str | None]]]

LAYOUTS: Sequence[Layout] = (
    ("1", "none", {}),
    ("dp=2", "data:dp", {}),
    ("tp=2", "none", MEGATRON),
    ("dp=3", "zero2:dp", {}),
    ("tp=3", "none", MEGATRON),
    ("dp=2,tp=2", "none", {**DATA, **MEGATRON}),
    ("dp=2,tp=3", "none", {**DATA, **MEGATRON}),
    ("dp=2,tp=3", "fsdp:dp", MEGATRON),
)
"""(mesh, strategy, pins) that between them split everything that can be, also unevenly."""


class Model(nn.Module):
    """Two layers whose names have dots, and a running mean as a buffer."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, CLASSES)
        self.register_buffer("mean", torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)))
        self.mean.copy_(0.9 * self.mean + 0.1 * y.detach().mean(0))
        return y


def batches(count: int, seed: int = 1) -> list[Batch]:
    """Returns global batches."""
    drawn = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(BATCH, WIDTH, generator=drawn),
            torch.randn(BATCH, CLASSES, generator=drawn),
        )
        for _ in range(count)
    ]


@dataclass
class Reference:
    """What one device does: a model and its optimizer under plain PyTorch."""

    model: Model
    optimizer: torch.optim.Adam

    @classmethod
    def of_seed(cls, seed: int = 0) -> Reference:
        """Returns the model of this seed, before the first step."""
        torch.manual_seed(seed)
        model = Model()
        biases = [p for name, p in model.named_parameters() if "bias" in name]
        others = [p for name, p in model.named_parameters() if "bias" not in name]
        groups = [{"params": others, "lr": 0.05}, {"params": biases, "lr": 0.01}]
        return cls(model, torch.optim.Adam(groups))

    def step(self, batch: Batch) -> float:
        """Trains on a batch and returns its loss."""
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        return loss.item()


def training_build(folder: Path, layout: Layout, **options: object) -> Path:
    """Writes a training build of the reference for a mesh and returns its folder."""
    compiled_step(layout, **options).save(folder)
    return folder


def compiled_step(layout: Layout, **options: object) -> CompiledModel:
    """Returns a training step of the reference for a mesh."""
    mesh, strategy, shard = layout
    one = Reference.of_seed()
    return compile(
        one.model,
        batches(1)[0],
        mesh=mesh,
        strategy=strategy,
        shard=shard,
        loss=mse_loss,
        optimizer=one.optimizer,
        **options,  # type: ignore[arg-type]
    )


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compares tensors by name, relative to the largest element of each."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        error = (found[name] - tensor).abs().max()
        assert error <= 1e-5 * tensor.abs().max(), name
