"""What is computed in chunks: processes compute the bits of the virtual mesh."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import autopar
from autopar.base.errors import AnnotationError
from autopar.runtime.job.processes import Processes
from tests.end_to_end.test_chunks import CLASSES, STEPS, Language, compiled
from tests.runtime.job.real import run_ranks

Bits = tuple[list[float], dict[str, bytes]]
"""Losses, and the parameters after them."""


def bits_of(trainer: Any, batch: Any) -> Bits:
    losses = [float(trainer.step(batch)) for _ in range(STEPS)]
    return losses, {n: t.numpy().tobytes() for n, t in trainer.state_dict().items()}


def in_processes(processes: Processes, builds: list[tuple[Path, Any]]) -> list[Bits]:
    found = []
    for build, batch in builds:
        with autopar.load(build, processes=processes) as trainer:
            found.append(bits_of(trainer, batch))
    return found


def random_build(seed: int, mesh: str, folder: Path) -> Any:
    """Writes a build of a language model with random chunks; returns its batch."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    model = Language(tied=chance.random() < 0.5)
    shape = chance.choice([3, 4, 8]), chance.choice([4, 5])
    batch = torch.randint(0, CLASSES, shape), torch.randint(0, CLASSES, shape)
    asked: dict[str, Any] = {"strategy": chance.choice(["auto", "data:0", "tensor:0", "fsdp:0"])}
    if chance.random() < 0.4 and shape[0] > 3:
        asked["accumulate"] = 2
    for parts in (chance.choice([2, 3, 5]), 2):
        try:
            step = compiled(model, batch, mesh, chunks={"head": parts}, **asked)
        except AnnotationError:
            continue
        step.save(folder)
        return batch
    raise AssertionError(f"{seed}: nothing is cut")


@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("ranks", "mesh"), [(2, "2"), (3, "3"), (4, "2x2")])
def test_processes_compute_the_bits_of_the_virtual_mesh(
    ranks: int, mesh: str, count: int, tmp_path: Path
) -> None:
    builds, wanted = [], []
    for seed in range(count):
        build = tmp_path / str(seed)
        builds.append((build, random_build(seed, mesh, build)))
        with autopar.load(build, virtual=True) as trainer:
            wanted.append(bits_of(trainer, builds[-1][1]))
    assert run_ranks(ranks, in_processes, builds) == [wanted] * ranks
