"""Trains a small GPT to predict the next character of a text: plain PyTorch, on one device.

    python examples/train_gpt.py

There is nothing of autopar in this file. `train_gpt_mesh.py` trains the same model on many devices;
docs/training.md explains it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 128, 64, 64, 4, 2
BATCH, STEPS = 64, 20


class Block(nn.Module):
    """Attention and a feed-forward part, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return x

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).transpose(1, 3)
        q, k, v = heads.unbind(2)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return joined


class GPT(nn.Module):
    """Characters [batch, length] to scores of the next ones [batch, length, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.characters(ids) + self.positions(at))
        found: Tensor = self.scores(self.norm(x))
        return found


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns the batch of a step: pieces of the text, and the same one character later."""
    text = torch.tensor(list(TEXT.read_bytes()))
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
    pieces = text[starts + torch.arange(CONTEXT + 1)]
    return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def criterion(scores: Tensor, target: Tensor) -> Tensor:
    """Returns how unexpected the characters were."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """Returns the optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def main() -> None:
    """Trains."""
    model = GPT()
    optimizer = adamw(model)
    for step in range(STEPS):
        ids, target = batch(step)
        loss = criterion(model(ids), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4:
            print(f"step {step + 1:2}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
