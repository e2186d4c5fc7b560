"""What is cut along one dimension, and around it what is cut along another."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.end_to_end.test_chunks import check, compiled, trained

CLASSES = 6


class Head(nn.Module):
    """Scores of few classes, of which those of one don't count."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.pre = nn.Embedding(11, CLASSES), nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        scores, weight = torch.tanh(self.tokens(ids)), torch.linspace(0.1, 1, CLASSES)
        target = torch.arange(ids.numel()) * 7 % CLASSES
        asked = {"weight": weight.to(x), "label_smoothing": 0.1, "ignore_index": 0}
        return F.cross_entropy(scores.flatten(0, 1), target, **asked) + self.pre(x).sin().mean()


@pytest.mark.parametrize("mesh", ["1", "2", "2x2"])
def test_loops_stay_in_one_piece(mesh: str, tmp_path: Path) -> None:
    """Sums of both may be joined, where the one loop is torn by the other."""
    torch.manual_seed(0)
    model = Head().double()
    batch = torch.randn(5, 12, CLASSES).double(), torch.randint(0, 11, (5, 12))
    expected = trained(compiled(model, batch, "1"), batch, tmp_path / "whole")
    chunks = {"tokens": (2, 3), "masked_fill_1": (0, 5)}
    shard = {"batch.1": ["d0", -1]} if mesh != "1" else {}
    step = compiled(model, batch, mesh, strategy=None, shard=shard, chunks=chunks)
    names = [op.loops[-1][0] for op in step.serial.main.ops if op.loops]
    assert len([*groupby(names)]) == len({*names}) > 3
    check(trained(step, batch, tmp_path / "chunks"), expected)
