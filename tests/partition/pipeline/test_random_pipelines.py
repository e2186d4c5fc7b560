"""Random pipelines train as one device, and in processes that live long as on the virtual mesh."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import autopar
from autopar.runtime.job.processes import Processes
from tests.partition.pipeline.random_steps import RandomStep
from tests.runtime.job.real import run_ranks

FEW, MANY = 3, 200


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(s, marks=pytest.mark.slow) for s in range(FEW, MANY))]
)
def test_random_pipelines_train_as_one_device(tmp_path: Path, seed: int) -> None:
    step = RandomStep.of(seed)
    step.compiled().save(tmp_path / "build")
    found = step.on_virtual_mesh(tmp_path / "build")
    assert found == pytest.approx(step.on_one_device(), rel=1e-9, abs=1e-12)


def trained(processes: Processes, builds: Sequence[tuple[Path, int, str]]) -> list[list[float]]:
    """Trains with one build after the other in the same processes."""
    found = []
    for build, seed, mesh in builds:
        with autopar.load(build, processes=processes) as trainer:
            found.append(RandomStep.of(seed, mesh).trained(trainer))
    return found


@pytest.mark.parametrize(
    ("mesh", "count"),
    [
        ("pp=2", 3),
        pytest.param("pp=2", 125, marks=pytest.mark.slow),
        pytest.param("pp=4", 125, marks=pytest.mark.slow),
        pytest.param("pp=2,dp=2", 125, marks=pytest.mark.slow),
        pytest.param("pp=2,tp=2", 125, marks=pytest.mark.slow),
    ],
)
def test_processes_that_live_long_never_hang(tmp_path: Path, mesh: str, count: int) -> None:
    builds, wanted = [], []
    for seed in range(1000, 1000 + count):
        step, build = RandomStep.of(seed, mesh), tmp_path / f"{seed}"
        step.compiled().save(build)
        builds.append((build, seed, mesh))
        wanted.append(step.on_virtual_mesh(build))
    ranks = step.compiled().serial.mesh
    assert ranks is not None
    assert run_ranks(ranks.size, trained, builds) == [wanted] * ranks.size
