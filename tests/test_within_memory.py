"""Searching within memory: presets are tried where no searched plan fits."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autopar
from autopar import within_memory
from autopar.cost import memory_timeline
from autopar.modules import CompiledModule


def compiled(strategy: str, memory: int | None = None) -> CompiledModule:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    return autopar.compile(
        model,
        (torch.randn(16, 8), torch.randn(16, 8)),
        mesh="dp=2,tp=2",
        strategy=strategy,
        loss=F.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        memory=memory,
    )


def peak(found: CompiledModule) -> int:
    return memory_timeline(found.compiled.partitioned).peak_bytes


def test_presets_are_tried_where_no_searched_plan_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(within_memory, "PRICES", ())
    limit = peak(compiled("fsdp:dp,tensor:tp"))
    assert peak(compiled("auto", limit)) <= limit
    # What misses by a lot is said to.
    monkeypatch.undo()
    with pytest.raises(autopar.AutoparError, match="more than the limit of"):
        compiled("auto", 1000)
