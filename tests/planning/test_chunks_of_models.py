"""Models that a limit of memory lets be computed in parts: each as the whole, and as predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import autopar
from autopar.compiled import CompiledModel
from autopar.cost import memory_timeline, peak_rank_timeline
from tests.end_to_end.test_chunks import EFFORT, check, trained
from tests.judges.tracking import executed
from tests.planning.chunk_cases import CASES, CLASSES, Case


def batch_of(case: Case) -> tuple[Tensor, Tensor]:
    return torch.randn(case.shape).double(), torch.randint(0, CLASSES, case.shape[:1])


def compiled(case: Case, mesh: str, **said: Any) -> tuple[CompiledModel, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model, batch = case.model().double(), batch_of(case)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = {"mesh": mesh, "loss": case.loss, "optimizer": optimizer, "effort": EFFORT, **said}
    return autopar.compile(model, batch, **said), batch


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
