"""What is compiled is the fastest as it is run, with small sums joined, of what was tried."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autopar
from autopar.compiled import CompiledModel
from autopar.cost import Cluster
from autopar.cost.evaluation import evaluate


def compiled(rows: int, strategy: str) -> CompiledModel:
    """Returns a step of eight layers whose gradients are small."""
    with torch.device("meta"):
        layers = [each for _ in range(8) for each in (nn.Linear(64, 64, bias=False), nn.ReLU())]
        module = nn.Sequential(*layers)
        batch = torch.zeros(rows, 64), torch.zeros(rows, 64)
    return autopar.compile(
        module,
        batch,
        mesh="2",
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(module.parameters()),
        cluster="h100",
        strategy=strategy,
    )


def seconds_as_run(step: CompiledModel) -> float:
    """Returns the serialized seconds of a rank's program."""
    return evaluate(step.partitioned, Cluster.load("h100")).serialized_seconds


@pytest.mark.parametrize("rows", [64, 1024, 4096, 16384])
def test_joined_sums_decide(rows: int) -> None:
    """One message for eight gradients makes splitting the batch the fastest for fewer rows."""
    presets = [seconds_as_run(compiled(rows, each)) for each in ("replicate:0", "data:0")]
    assert seconds_as_run(compiled(rows, "auto")) <= min(presets) * (1 + 1e-9)
