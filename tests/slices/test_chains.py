"""Chains of slices of a mesh on real processes, of which each is in other groups than the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar import ProcessMesh
from tests.runtime.execute.targets import losses_of
from tests.runtime.job.real import run_ranks
from tests.slices.models import Stages, batches, compiled, saved, trained

LONG = [pytest.param(count, marks=pytest.mark.slow) for count in (5, 6, 7, 8)]


def chain_losses(tmp_path: Path, count: int) -> tuple[list[list[float]], list[float]]:
    """Returns the losses of every rank of a chain of slices, and those of one device."""
    mesh = ProcessMesh(list(range(count)), ["pp"])
    given = batches(2, 6, 8)
    model = Stages([mesh[at] for at in range(count)])
    folder = saved(compiled(model, mesh, given[0]), tmp_path / "b")
    return run_ranks(count, losses_of, folder, given), trained(model, given)


@pytest.mark.parametrize("count", [3, 4, *LONG])
def test_a_chain_of_slices_trains_like_one_device(tmp_path: Path, count: int) -> None:
    found, expected = chain_losses(tmp_path, count)
    for losses in found:
        assert losses == pytest.approx(expected, rel=1e-5)
