"""Pipelines of microbatches of different sizes, and of fewer microbatches than stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.runtime.job.processes import Processes
from tests.partition.pipeline.models import (
    Batch,
    Decoder,
    batch_of,
    loss,
    on_virtual_mesh,
    on_whole_batches,
    optimizer_of,
)
from tests.runtime.job.real import run_ranks

SLOW = pytest.mark.slow
CLIPPED = 0.5


def of_whole_batches(model: nn.Module, batch: Batch) -> list[float]:
    return on_whole_batches(model, batch, clip=CLIPPED)


def compiled_from(
    decoder: nn.Module, batch: Batch, microbatches: int, options: dict[str, Any]
) -> autopar.CompiledModel:
    return autopar.compile(
        decoder,
        batch,
        loss=loss,
        optimizer=optimizer_of(decoder),
        clip_grad_norm=CLIPPED,
        accumulate=microbatches,
        pipeline="pp",
        **{"strategy": None, **options},
    )


@pytest.mark.parametrize(
    ("microbatches", "rows", "options"),
    [
        (4, 7, {"mesh": "pp=4"}),
        pytest.param(4, 7, {"mesh": "pp=4", "schedule": "gpipe"}, marks=SLOW),
        (4, 7, {"mesh": "pp=4", "schedule": "zb-h1"}),
        pytest.param(4, 7, {"mesh": "pp=4", "schedule": "zb-h2"}, marks=SLOW),
        (4, 7, {"mesh": "pp=2", "schedule": "interleaved"}),
        pytest.param(4, 7, {"mesh": "pp=2", "schedule": "zb-v"}, marks=SLOW),
        pytest.param(4, 7, {"mesh": "pp=2", "schedule": "dualpipe-v"}, marks=SLOW),
        pytest.param(4, 7, {"mesh": "pp=2,dp=2", "strategy": "data:dp"}, marks=SLOW),
        pytest.param(4, 7, {"mesh": "pp=2,dp=2", "strategy": "fsdp:dp"}, marks=SLOW),
        pytest.param(4, 7, {"mesh": "pp=2,tp=2", "strategy": "tensor:tp"}, marks=SLOW),
        pytest.param(4, 7, {"mesh": "pp=2,dp=2", "strategy": "auto"}, marks=SLOW),
        (2, 4, {"mesh": "pp=4"}),
        pytest.param(2, 4, {"mesh": "pp=4", "schedule": "gpipe"}, marks=SLOW),
        pytest.param(2, 4, {"mesh": "pp=4", "schedule": "zb-h1"}, marks=SLOW),
        pytest.param(2, 7, {"mesh": "pp=4"}, marks=SLOW),
        pytest.param(3, 5, {"mesh": "pp=4", "schedule": "zb-h1"}, marks=SLOW),
        pytest.param(3, 5, {"mesh": "pp=2", "schedule": "interleaved"}, marks=SLOW),
    ],
)
@pytest.mark.parametrize("model", [{}, pytest.param({"tied": True, "skips": True}, marks=SLOW)])
def test_losses_are_those_of_whole_batches(
    tmp_path: Path, microbatches: int, rows: int, options: dict[str, Any], model: dict[str, bool]
) -> None:
    torch.manual_seed(0)
    decoder, batch = Decoder(4, **model), batch_of(rows)
    compiled_from(decoder, batch, microbatches, options).save(tmp_path / "build")
    found = on_virtual_mesh(tmp_path / "build", batch)
    assert found == pytest.approx(of_whole_batches(decoder, batch), rel=1e-5)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_ignored_targets_are_those_of_the_whole_batch(tmp_path: Path, schedule: str) -> None:
    torch.manual_seed(0)
    decoder, (ids, target) = Decoder(4), batch_of(7)
    target[:2], target[3, 1:] = -100, -100
    step = compiled_from(decoder, (ids, target), 4, {"mesh": "pp=4", "schedule": schedule})
    step.save(tmp_path / "build")
    found = on_virtual_mesh(tmp_path / "build", (ids, target))
    assert found == pytest.approx(of_whole_batches(decoder, (ids, target)), rel=1e-5)
    counted = [op for op in step.ranks.main.ops if op.kind == "aten.ne.Scalar"]
    # Those of 2 rows are counted side by side, and that of one.
    assert [(op.stage, op.microbatch) for op in counted] == [(3, 0)] * 2


def trained(processes: Processes, build: Path, batch: Batch) -> list[float]:
    with autopar.load(build, processes=processes) as trainer:
        return [float(trainer.step(batch)) for _ in range(3)]


@SLOW
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved"])
@pytest.mark.parametrize(("microbatches", "rows"), [(4, 7), (2, 5)])
def test_processes_compute_the_bits_of_the_virtual_mesh(
    tmp_path: Path, schedule: str, microbatches: int, rows: int
) -> None:
    torch.manual_seed(0)
    build, batch = tmp_path / "build", batch_of(rows)
    options = {"mesh": "pp=4", "schedule": schedule}
    compiled_from(Decoder(4), batch, microbatches, options).save(build)
    assert run_ranks(4, trained, build, batch) == [on_virtual_mesh(build, batch)] * 4
