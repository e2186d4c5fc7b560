"""Models from elsewhere, made parallel, train in the user's loop on real processes."""

from __future__ import annotations

import pytest

from tests.runtime.job.real import run_ranks
from tests.zoo.jobs import train_in_job

CASES = [
    (2, "gpt2", "tp=2", "tensor:tp", "dtensor"),
    (2, "llama", "dp=2", "fsdp:dp", "dtensor"),
    (2, "resnet", "dp=2", "ddp:dp", "local"),
    (2, "t5", "tp=2", "tensor:tp,sequence:tp", "local"),
    (4, "gpt2", "dp=2,tp=2", "fsdp:dp,tensor:tp", "local"),
    (4, "llama", "tp=4", "tensor:tp", "dtensor"),
    (4, "resnet", "dp=2,tp=2", "ddp:dp,tensor:tp", "dtensor"),
    (4, "t5", "dp=2,tp=2", "ddp:dp,tensor:tp", "dtensor"),
]
"""Number of ranks, model, mesh, strategy, and kind of parameters."""


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "name", "mesh", "strategy", "kind"), CASES)
def test_models_from_elsewhere_train_in_jobs(
    ranks: int, name: str, mesh: str, strategy: str, kind: str
) -> None:
    found = run_ranks(ranks, train_in_job, name, mesh, strategy, kind)
    assert found == [""] * ranks
