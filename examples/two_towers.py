"""Trains two encoders side by side, each on a half of the mesh, and compares the losses.

    python examples/two_towers.py

The model is written for one device. Two marks send the pixels to one slice of the mesh and the
words to another; what is computed from them runs there, and only the few numbers that both have in
common travel. The step is trained by four real processes (gloo, on the CPU), and its losses are
compared with those of plain PyTorch in one process.
"""

from __future__ import annotations

import sys

import torch
from side_by_side import compare_losses, run, train_plainly
from torch import Tensor, nn

import autopar
from autopar import ProcessMesh, annotate

STEPS, BATCH, WIDTH, HIDDEN, SHARED = 10, 16, 48, 96, 16
TOLERANCE = 1e-5

MESH = ProcessMesh([[0, 1], [2, 3]], dim_names=["side", "dp"])

Batch = tuple[tuple[Tensor, Tensor], Tensor]


class Towers(nn.Module):
    """An encoder of pixels and one of words; the scores of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU()
        )
        self.text = nn.Sequential(nn.Embedding(100, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
        self.project = nn.ModuleList(nn.Linear(HIDDEN, SHARED) for _ in range(2))

    def forward(self, pixels: Tensor, words: Tensor) -> Tensor:
        pixels = annotate.shard(pixels, MESH["side", 0], ["dp", None])
        words = annotate.shard(words, MESH["side", 1], ["dp", None])
        image: Tensor = self.project[0](self.image(pixels))
        text: Tensor = self.project[1](self.text(words).mean(1))
        return image @ text.t()


def batch(step: int) -> Batch:
    """Returns the global batch of a step: pixels and words that belong together."""
    generator = torch.Generator().manual_seed(step)
    pixels = torch.randn(BATCH, WIDTH, generator=generator)
    words = torch.randint(0, 100, (BATCH, 5), generator=generator)
    return (pixels, words), torch.arange(BATCH)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """Returns the optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def compiled() -> autopar.CompiledModel:
    """Compiles the training step; nothing but the marks says how it is split."""
    model = Towers()
    return autopar.compile(
        model,
        batch(0),
        mesh=MESH,
        loss=nn.functional.cross_entropy,
        optimizer=adamw(model),
        strategy=None,
    )


def compare() -> int:
    """Trains in both ways; returns 1 if the losses differ."""
    model = Towers()
    expected = train_plainly(model, adamw(model), nn.functional.cross_entropy, batch, STEPS)
    return compare_losses(__file__, compiled(), MESH.size, expected, TOLERANCE)


if __name__ == "__main__":
    sys.exit(run(__doc__, compare, batch, STEPS))
