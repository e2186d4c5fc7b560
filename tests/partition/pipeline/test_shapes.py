"""Stages whose meshes have different shapes: at several indices of the pipeline's axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import autopar
from autopar.runtime.job.processes import Processes
from tests.partition.pipeline.models import (
    Decoder,
    batch_of,
    compiled,
    on_one_device,
    on_virtual_mesh,
)
from tests.partition.pipeline.random_steps import RandomStep
from tests.runtime.job.real import run_ranks

FEW, MANY = 6, 100


@pytest.mark.parametrize(
    ("mesh", "stages", "strategy", "schedule", "options"),
    [
        ("pp=4", (3, 1), "data:pp", "1f1b", {}),
        ("pp=4", (1, 3), "auto", "1f1b", {}),
        ("pp=4", (1, 3), None, "gpipe", {"tied": True}),
        ("pp=3,dp=2", (2, 1), "data:dp,data:pp", "zb-h1", {"tied": True, "skips": True}),
        ("pp=6", (2, 4), "fsdp:pp", "1f1b", {"skips": True}),
        ("dp=2,pp=3", (1, 2), "data:dp,tensor:pp", "zb-h2", {}),
        ("pp=4", (1, 2, 1), "tensor:pp", "1f1b", {"tied": True}),
        ("pp=5", (2, 3), "data:pp", "interleaved", {"skips": True}),
        ("pp=4", (3, 1), "auto", "zb-v", {"tied": True}),
        ("pp=5", (2, 1, 2), "data:pp", "dualpipe-v", {}),
    ],
)
def test_stages_of_other_shapes_train_as_one_device(
    mesh: str,
    stages: Sequence[int],
    strategy: str | None,
    schedule: str,
    options: dict[str, bool],
    tmp_path: Path,
) -> None:
    turns = 2 if schedule in ("interleaved", "zb-v", "dualpipe-v") else 1
    model = Decoder(len(stages) * turns, layers=6, **options)
    step = compiled(model, 3, mesh=mesh, stages=stages, strategy=strategy, schedule=schedule)
    step.save(tmp_path / "build")
    found = on_virtual_mesh(tmp_path / "build", batch_of(6))
    assert found == pytest.approx(on_one_device(model, 3), rel=1e-5)


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(s, marks=pytest.mark.slow) for s in range(FEW, MANY))]
)
def test_random_pipelines_of_other_shapes_train_as_one_device(tmp_path: Path, seed: int) -> None:
    step = RandomStep.of(seed, widths=True)
    step.compiled().save(tmp_path / "build")
    found = step.on_virtual_mesh(tmp_path / "build")
    assert found == pytest.approx(step.on_one_device(), rel=1e-9, abs=1e-12)


def trained(processes: Processes, builds: Sequence[tuple[Path, int, str]]) -> list[list[float]]:
    """Trains with one build after the other in the same processes."""
    found = []
    for build, seed, mesh in builds:
        with autopar.load(build, processes=processes) as trainer:
            found.append(RandomStep.of(seed, mesh, widths=True).trained(trainer))
    return found


@pytest.mark.parametrize("count", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_processes_compute_what_the_virtual_mesh_does(tmp_path: Path, count: int) -> None:
    builds, wanted = [], []
    for seed in range(1000, 1000 + 8 * count):
        step, build = RandomStep.of(seed, "pp=2", widths=True), tmp_path / f"{seed}"
        if step.options["mesh"] == "pp=4" and len(builds) < count:
            step.compiled().save(build)
            builds.append((build, seed, "pp=2"))
            wanted.append(step.on_virtual_mesh(build))
    assert run_ranks(4, trained, builds) == [wanted] * 4
