"""Trains a small GPT with a plain PyTorch loop, on one process or on many.

    python examples/parallelize.py
    torchrun --nproc-per-node 4 examples/parallelize.py --mesh dp=2,tp=2

The model, the loss and the loop are what a script for one device has. What is new is marked: one
import, one call, and that only rank 0 prints. The losses are the same on any mesh.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import autopar  # new

LENGTH, BATCH, WIDTH, HEADS, LAYERS = 32, 8, 64, 4, 2


class Block(nn.Module):
    """Attention and a perceptron, each added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + F.dropout(self.down(F.gelu(self.up(self.norms[1](x)))), 0.1, self.training)


class GPT(nn.Module):
    """Predicts the next byte; its head is tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.table.weight

    def forward(self, text: Tensor) -> Tensor:
        x = self.table(text) + self.positions.weight[: text.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def batch(step: int) -> Tensor:
    """Returns pieces of this file: the global batch, the same on every rank."""
    content = torch.tensor(list(Path(__file__).read_bytes()))
    drawn = torch.Generator().manual_seed(step)
    starts = torch.randint(0, len(content) - LENGTH, (BATCH,), generator=drawn)
    return torch.stack([content[start : start + LENGTH + 1] for start in starts])


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small GPT on one process or on many.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--mesh", default="1", help="as dp=2,tp=2: one process for each")  # new
    parser.add_argument("--strategy", default="", help="as ddp:dp,tensor:tp")  # new
    options = parser.parse_args()

    torch.manual_seed(0)
    model: nn.Module = GPT()
    model = autopar.parallelize(  # new
        model, batch(0)[:, :-1], mesh=options.mesh, strategy=options.strategy
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    for step in range(options.steps):
        text = batch(step)
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if not dist.is_initialized() or dist.get_rank() == 0:  # new
            print(f"step {step}: loss {loss.item():.5f}")

    if dist.is_initialized():  # new
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
