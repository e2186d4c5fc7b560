"""Chunks of models that a preset splits: iterations split what they take, and weights are held."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autopar.ir.ops.loops import HOLD
from tests.end_to_end.test_chunks import check, compiled, trained, trips


class Head(nn.Module):
    """A layer and a head, whose scores are far larger than all else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 96)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        scores = self.head(torch.tanh(self.layer(x)))
        return F.cross_entropy(scores.flatten(0, 1), target.flatten())


@pytest.mark.parametrize(
    ("mesh", "strategy", "parts"),
    [("dp=2", "data:dp", 2), ("dp=3", "fsdp:dp", 3), ("dp=2,tp=2", "fsdp:dp,tensor:tp", 2)],
)
def test_steps_are_those_of_the_whole(mesh: str, strategy: str, parts: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Head().double()
    batch = torch.randn(12, 4, 8).double(), torch.randint(0, 96, (12, 4))
    expected = trained(compiled(model, batch, "1"), batch, tmp_path / "whole")
    step = compiled(model, batch, mesh, chunks={"head": parts}, strategy=strategy)
    assert trips(step)
    check(trained(step, batch, tmp_path / "chunks"), expected)


def test_iterations_read_weights_that_are_gathered_once() -> None:
    model, batch = Head(), (torch.randn(12, 4, 8), torch.randint(0, 96, (12, 4)))
    step = compiled(model, batch, "dp=2", chunks={"head": 3}, strategy="fsdp:dp")
    assert any(op.kind == HOLD for op in step.completed.main.ops)
    assert all(op.kind != HOLD for op in step.partitioned.main.ops)
    bodies = [f for name, f in step.partitioned.functions.items() if name != "main"]
    kinds = [op.kind for body in bodies for op in body.ops]
    assert kinds
    assert not any(kind.startswith("comm.all_gather") for kind in kinds)
    products = [op for op in step.completed.main.ops if op.kind == "aten.mm.default" and op.loops]
    assert products
    assert all(op.dist is not None and op.dist.factors for op in products)
