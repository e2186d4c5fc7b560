"""Parallel modules on real processes: what the user's loop computes is what one device computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import autopar
from tests.parallel import targets
from tests.parallel.tiny import tiny, tokens
from tests.runtime.real import run_ranks


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [("tp=2", "tensor:tp"), ("dp=2,tp=2", "fsdp:dp,tensor:tp")],
)
def test_a_loop_of_the_user_trains_it_like_the_original(mesh: str, strategy: str) -> None:
    ranks = 4 if "," in mesh else 2
    kinds = ("dtensor", "local")
    assert run_ranks(ranks, targets.trained, mesh, strategy, kinds, seconds=300) == [""] * ranks


def test_states_go_to_checkpoints_and_other_layouts(tmp_path: Path) -> None:
    assert run_ranks(2, targets.checkpointed, tmp_path, seconds=300) == ["", ""]


def test_gradients_add_up_over_calls_of_different_shapes() -> None:
    assert run_ranks(2, targets.accumulated, seconds=300) == ["", ""]


def test_dropout_is_the_same_on_any_mesh() -> None:
    parallel = autopar.parallelize(tiny(dropout=0.5), tokens(0), mesh="1")
    wanted = [parallel(tokens(0)).detach() for _ in range(2)]
    for found in run_ranks(2, targets.dropped, "tp=2", seconds=300):
        torch.testing.assert_close([torch.tensor(each) for each in found], wanted)


def test_ranks_that_do_not_fit_are_told() -> None:
    for found in run_ranks(2, targets.mismatched, "dp=2,tp=2", seconds=300):
        assert "the job has 2 processes but ProcessMesh(dp=2, tp=2) has 4" in found
    for found in run_ranks(2, targets.diverged, seconds=300):
        assert "ranks [1] compiled another program than rank 0" in found
