"""What kernels save of halves has the dtype that a program says."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar

RATE = 0.1


class Normed(nn.Module):
    """A linear layer and a batch norm."""

    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.linear(x))
        return out


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("mixed", ["autocast", "master_dtype"])
@pytest.mark.parametrize("mesh", ["1", "3"])
def test_batch_norms_of_halves(
    tmp_path: Path, mesh: str, mixed: str, momentum: float | None
) -> None:
    model, x, target = Normed(momentum), torch.randn(7, 4), torch.randn(7, 6)
    options: dict[str, Any] = {"autocast": torch.bfloat16}
    if mixed == "master_dtype":
        model, x, target = model.bfloat16(), x.bfloat16(), target.bfloat16()
        options = {"master_dtype": torch.float32}
    alone = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed == "autocast"):
        expected = F.mse_loss(alone(x), target)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    given = {"loss": F.mse_loss, "optimizer": optimizer, "mesh": mesh, "strategy": "data"}
    autopar.compile(model, (x, target), **given, **options).save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        found = trainer.step((x, target))
        state = trainer.state_dict()
    torch.testing.assert_close(found.float(), expected.detach().float(), rtol=1e-2, atol=0)
    for name, buffer in alone.named_buffers():
        assert state[name].dtype == buffer.dtype
        torch.testing.assert_close(state[name], buffer, rtol=2e-2, atol=1e-2)
