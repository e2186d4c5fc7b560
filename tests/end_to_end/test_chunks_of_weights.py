"""Weights that are moved in chunks with what reads them, and read as a whole, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.end_to_end.test_chunks import check, compiled, trained, trips


class Twice(nn.Module):
    """A layer that runs twice, whose weight is about as large as what it makes: it is cut, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        y = torch.sin(torch.tanh(self.layer(x)))
        y = self.norm(torch.tanh(self.layer(y)))
        return F.mse_loss(self.last(x + y), target)


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("mesh", ["1", "3", "pp=2,dp=3"])
def test_a_weight_is_put_together_in_its_own_loop(
    mesh: str, microbatches: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Twice().double()
    batch = torch.randn(6, 8).double(), torch.randn(6, 8).double()
    said = {"accumulate": microbatches}
    pipeline = {"pipeline": "pp"} if "pp" in mesh else {}
    expected = trained(compiled(model, batch, "1", **said), batch, tmp_path / "whole")
    step = compiled(model, batch, mesh, chunks={"layer": 2}, **said, **pipeline)
    assert set(trips(step)) - {"microbatch"}
    check(trained(step, batch, tmp_path / "chunks"), expected)
