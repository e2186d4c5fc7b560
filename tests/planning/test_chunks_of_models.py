"""Models that a limit of memory lets be computed in parts: each as the whole, and as predicted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.compiled import CompiledModel
from autopar.cost import memory_timeline, peak_rank_timeline
from tests.cost.memory.test_measured_memory import executed
from tests.end_to_end.test_chunks import check, trained

CLASSES = 601
WEIGHT = torch.linspace(0.1, 1, CLASSES, dtype=torch.float64)


class Scores(nn.Module):
    """Attention whose scores are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (2, -1)).transpose(1, 2).chunk(3, -1)
        return ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Perceptron(nn.Module):
    """Four times as wide inside."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.down(F.gelu(self.up(x)))
        return found


class Images(nn.Module):
    """Wide channels between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(F.relu(self.first(x)))
        return found


class Head(nn.Module):
    """Scores of many classes."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.pre(x))
        return found


class Towers(nn.Module):
    """Two, whose results are compared, each with each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.first(x), dim=-1), F.normalize(self.second(x), dim=-1)


def squares(found: Tensor, target: Tensor) -> Tensor:
    return (found**2).mean()


def contrastive(found: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    logits, at = 10 * found[0] @ found[1].t(), torch.arange(len(target))
    return F.cross_entropy(logits, at) + F.cross_entropy(logits.t(), at)


def everything(found: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(found, target, WEIGHT, ignore_index=3, label_smoothing=0.1)


def two(found: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(found, target) + (found.logsumexp(-1) ** 2).mean() / 100


def likelihood(found: Tensor, target: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(found, -1), target)


def binary(found: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(found, F.one_hot(target, CLASSES).to(found))


def divergence(found: Tensor, target: Tensor) -> Tensor:
    hot = F.one_hot(target, CLASSES).to(found)
    return F.kl_div(F.log_softmax(found, -1), hot, reduction="batchmean")


class Case(NamedTuple):
    """A model, the shape of its input, its loss, and what of the peak it is given."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Callable[[Any, Tensor], Tensor] = squares
    share: float = 0.6


CASES = {
    "attention": Case(Scores, (1, 128, 8)),
    "perceptron": Case(Perceptron, (700, 8)),
    "convolution": Case(Images, (1, 3, 40, 40)),
    "cross entropy": Case(Head, (128, 8), F.cross_entropy),
    "cross entropy of uneven rows": Case(Head, (131, 8), F.cross_entropy),
    "weighted, smoothed, ignoring": Case(Head, (128, 8), everything),
    "likelihood": Case(Head, (128, 8), likelihood),
    "binary": Case(Head, (128, 8), binary),
    "divergence": Case(Head, (128, 8), divergence),
    "two losses": Case(Head, (128, 8), two),
    "contrastive": Case(Towers, (200, 8), contrastive, 0.8),
}


def batch_of(case: Case) -> tuple[Tensor, Tensor]:
    return torch.randn(case.shape).double(), torch.randint(0, CLASSES, case.shape[:1])


def compiled(case: Case, mesh: str, **said: Any) -> tuple[CompiledModel, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model, batch = case.model().double(), batch_of(case)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return autopar.compile(
        model, batch, mesh=mesh, loss=case.loss, optimizer=optimizer, **said
    ), batch


@pytest.mark.parametrize("name", CASES)
def test_fits_in_parts(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole, batch = compiled(case, "1")
    limit = int(case.share * peak_rank_timeline(whole.partitioned).peak_bytes)
    parts, _ = compiled(case, "1", memory=limit)
    assert parts.options.chunks
    check(trained(parts, batch, tmp_path / "parts"), trained(whole, batch, tmp_path / "whole"))
    (program,) = parts.deployment.programs
    measured = executed(program, parts.weights).peak_bytes
    assert measured == memory_timeline(program).peak_bytes <= limit


@pytest.mark.parametrize("mesh", ["tp=2", "tp=4", "dp=2,tp=2", "3"])
@pytest.mark.parametrize("name", ["cross entropy of uneven rows", "attention"])
def test_fits_in_parts_on_a_mesh(name: str, mesh: str, tmp_path: Path) -> None:
    """Over a vocabulary, or heads, that are split."""
    case = CASES[name]
    shard = {"head.weight": ["tp", -1]} if name != "attention" and "tp" in mesh else {}
    alone, batch = compiled(case, "1")
    whole, _ = compiled(case, mesh, shard=shard)
    limit = int(0.7 * peak_rank_timeline(whole.partitioned).peak_bytes)
    parts, _ = compiled(case, mesh, memory=limit, shard=shard)
    assert peak_rank_timeline(parts.partitioned).peak_bytes <= limit
    check(trained(parts, batch, tmp_path / "parts"), trained(alone, batch, tmp_path / "alone"))
