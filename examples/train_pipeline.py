"""Trains a language model as a pipeline of two stages, and compares the losses.

    python examples/train_pipeline.py

The model is written for one device, and nothing in it says where it is cut: autopar finds the place
for which a step takes the least predicted time, with the head's products in mind. Four microbatches
pass from stage to stage, each of which has two processes that share its rows. The step is trained
by four real processes (gloo, on the CPU), and its losses are compared with those of plain PyTorch
in one process, which has the whole batch at once.
"""

from __future__ import annotations

import sys

import torch
from side_by_side import compare_losses, run, train_plainly
from torch import Tensor, nn

import autopar

STEPS, ROWS, LENGTH, WIDTH, WORDS, LAYERS = 10, 16, 24, 64, 1000, 4
TOLERANCE = 1e-5

MESH, PROCESSES = "pp=2,dp=2", 4


class LanguageModel(nn.Module):
    """Predicts the next word at each place from those before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x: Tensor = self.words(ids)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(x)
        return logits


def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Returns the mean over all places of all rows."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns the global batch of a step: words, and those behind them."""
    generator = torch.Generator().manual_seed(step)
    first = torch.randint(0, WORDS, (ROWS, 1), generator=generator)
    ids = (first + 7 * torch.arange(LENGTH + 1)) % WORDS
    return ids[:, :-1], ids[:, 1:]


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """Returns the optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def compiled() -> autopar.CompiledModel:
    """Compiles the training step."""
    model = LanguageModel()
    return autopar.compile(
        model,
        batch(0),
        mesh=MESH,
        strategy="data:dp",
        loss=loss,
        optimizer=adamw(model),
        accumulate=4,
        pipeline="pp",
    )


def compare() -> int:
    """Trains in both ways; returns 1 if the losses differ."""
    model = LanguageModel()
    expected = train_plainly(model, adamw(model), loss, batch, STEPS)
    return compare_losses(__file__, compiled(), PROCESSES, expected, TOLERANCE)


if __name__ == "__main__":
    sys.exit(run(__doc__, compare, batch, STEPS))
