"""Predicted bytes of a rank beside those of real processes that communicate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cost.rank_memory_jobs import build, train_tracked
from tests.runtime.real import run_ranks

CASES = [
    (2, "tp=2", "tensor:tp"),
    (2, "dp=2", "ddp:dp"),
    (2, "dp=2", "fsdp:dp"),
    (2, "dp=2", "zero1:dp"),
    (4, "dp=2,tp=2", "fsdp:dp,tensor:tp"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "mesh", "strategy"), CASES)
def test_a_rank_of_a_job(tmp_path: Path, ranks: int, mesh: str, strategy: str) -> None:
    predicted = build(tmp_path / "b", mesh, strategy)
    for measured in run_ranks(ranks, train_tracked, str(tmp_path / "b"), seconds=120):
        assert predicted == pytest.approx(measured, rel=0.01)
