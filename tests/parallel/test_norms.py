"""Batches are split though norms need statistics of all rows; where they can't be, it is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.parallel import norms
from tests.runtime.job.real import run_ranks


def test_batch_norms_that_train_split_the_batch_and_are_those_of_one_device() -> None:
    _check(3, ("batch", "averaged", "synchronized", "rows", "averaged rows"), "dp=3", "ddp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "mesh", "strategy"),
    [
        (2, "dp=2", "ddp"),
        (3, "dp=3", "fsdp"),
        (4, "dp=2,tp=2", "ddp"),
        (4, "dp=2,tp=2", "ddp:dp,tensor:tp"),
        (4, "dp=2,tp=2", "fsdp:dp"),
    ],
)
def test_norms_of_all_kinds_are_those_of_one_device(ranks: int, mesh: str, strategy: str) -> None:
    _check(ranks, tuple(norms.MODELS), mesh, strategy)


def _check(ranks: int, names: Sequence[str], mesh: str, strategy: str) -> None:
    found = run_ranks(ranks, norms.normalizing, names, mesh, strategy)
    assert found == [{name: [] for name in names}] * ranks


def test_a_batch_that_cannot_be_split_is_said_to_be_whole() -> None:
    first, second = run_ranks(2, norms.unsplit)
    (warning,) = first["warnings"]
    assert warning.startswith("the strategy's batch of data:dp isn't split: no input has a first")
    assert "(aten.sort." in warning
    assert "norms.py:" in warning
    assert second["warnings"] == []
    assert first["parts"] == second["parts"]
    assert "'x' is not the same on ranks 0, 1" in first["parts"]
    assert "no input is split along a mesh axis between them" in first["parts"]
    assert "pass local=True" not in first["parts"]
    assert first["same"] == second["same"] == ""
    assert "pass local=True" in first["wholes"]
