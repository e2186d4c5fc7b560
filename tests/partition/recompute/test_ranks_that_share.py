"""What ranks of several kinds compute alike: copies behind what they read, and within limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autopar
from autopar.cost import memory_timeline
from autopar.ir.parts import programs_of
from tests.partition.pipeline.models import (
    Decoder,
    batch_of,
    loss,
    on_virtual_mesh,
    on_whole_batches,
    optimizer_of,
)

ROWS = 31


def peak_bytes(found: autopar.CompiledModel) -> int:
    """Returns the most bytes that any rank holds, each at its own place on the mesh."""
    return max(memory_timeline(*kind).peak_bytes for kind in programs_of(found.partitioned).kinds)


class Experts(nn.Module):
    """A loop over experts, of which each token has the best two."""

    def __init__(self, width: int = 8, count: int = 4) -> None:
        super().__init__()
        self.count, self.gate = count, nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = F.softmax(self.gate(x), -1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        gates = (F.one_hot(chosen, self.count).to(x.dtype) * weights.unsqueeze(-1)).sum(-2)
        y = torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            y = y + gates[..., at : at + 1] * expert(x)
        return x + y


class Mixture(nn.Module):
    """Layers of experts between tokens and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.layers = nn.ModuleList(Experts() for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_copies_of_what_a_stage_computes_alike_stand_behind_what_they_read(tmp_path: Path) -> None:
    """Ranks along `cp` put one op each before others: copies stood before what both compute."""
    torch.manual_seed(0)
    model, generator = Mixture(), torch.Generator().manual_seed(0)
    ids, target = (torch.randint(0, 16, (7, 6), generator=generator) for _ in range(2))
    step = autopar.compile(
        model,
        (ids, target),
        loss=loss,
        optimizer=optimizer_of(model),
        accumulate=5,
        mesh="pp=2,cp=2",
        pipeline="pp",
        strategy="context:cp",
        schedule="gpipe",
        activations={"*": "recompute"},
    )
    step.save(tmp_path / "build")
    losses = on_virtual_mesh(tmp_path / "build", (ids, target))
    assert losses == pytest.approx(on_whole_batches(model, (ids, target)), rel=1e-5)


def wide(
    model: nn.Module, stages: tuple[int, ...], memory: int | None = None, *, chunks: Any = None
) -> autopar.CompiledModel:
    """Returns a pipeline some of whose stages are at several indices of its axis."""
    return autopar.compile(
        model,
        batch_of(ROWS),
        loss=loss,
        optimizer=optimizer_of(model),
        accumulate=3,
        mesh=f"pp={sum(stages)}",
        pipeline="pp",
        stages=stages,
        strategy="data:pp",
        memory=memory,
        chunks=chunks,
    )


@pytest.mark.parametrize(
    ("stages", "share", "chunks"),
    [
        ((2, 2), 0.99, {}),
        ((2, 2), 0.9, {}),
        ((3, 1), 0.9, {}),
        ((2, 1, 1), 0.95, {}),
        pytest.param((3, 1), 0.8, None, marks=pytest.mark.slow),
    ],
)
def test_limits_hold_for_all_ranks_of_wide_stages(
    stages: tuple[int, ...], share: float, chunks: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Decoder(len(stages), layers=8)
    limit = int(share * peak_bytes(wide(model, stages)))
    step = wide(model, stages, limit, chunks=chunks)
    assert peak_bytes(step) <= limit
    step.save(tmp_path / "build")
    losses = on_virtual_mesh(tmp_path / "build", batch_of(ROWS))
    assert losses == pytest.approx(on_whole_batches(model, batch_of(ROWS)), rel=1e-5)
