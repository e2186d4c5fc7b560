"""A small GPT with a fused attention weight and tied embeddings, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, BATCH, LENGTH = 29, 16, 4, 4, 6


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Without a bias: that of keys has no gradient but noise.
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = [
            part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(x).split(WIDTH, dim=-1)
        ]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return out


class TinyGPT(nn.Module):
    """Returns logits; `head` is tied to `table`."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids) + self.positions[: ids.shape[1]]
        x = x + self.attention(self.norm(x))
        x = x + self.dropout(self.down(F.gelu(self.up(x))))
        out: Tensor = self.head(x)
        return out


class Scored(nn.Module):
    """Returns its loss beside the logits, as models of `transformers` do."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny()

    def forward(self, ids: Tensor, scored: bool = True) -> dict[str, Any]:
        logits = self.model(ids)
        if not scored:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        return {"loss": loss, "logits": logits, "rest": (logits.argmax(-1), "text")}


def tiny(dropout: float = 0.0) -> TinyGPT:
    """Returns the model, the same every time."""
    torch.manual_seed(0)
    return TinyGPT(dropout)


def tokens(number: int, batch: int = BATCH) -> Tensor:
    """Returns the global batch of a step."""
    drawn = torch.Generator().manual_seed(number)
    return torch.randint(0, VOCABULARY, (batch, LENGTH), generator=drawn)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Returns the user's loss."""
    logits = model(ids)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """Returns an optimizer in which noise of gradients that are zero stays small."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-6)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    clip: Callable[..., Any] = nn.utils.clip_grad_norm_,
    steps: range = range(3),
) -> list[tuple[float, float]]:
    """Trains with the loop that a user writes, and returns (loss, norm of gradients) per step."""
    found = []
    for number in steps:
        loss = loss_of(model, tokens(number))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = clip(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        found.append((loss.item(), float(norm)))
    return found
