"""Parallel modules on real processes: what the user's loop computes is what one device computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import autopar
from tests.parallel import targets
from tests.parallel.tiny import tiny, tokens
from tests.runtime.job.real import run_ranks


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    """One job for all: training, states in and out, accumulation, dropout, and what is refused."""
    same = (
        "tensor",
        "checkpointed",
        "whole",
        "accumulated",
        "handed",
        "put_together",
        "losses_alone",
        "as_wished",
    )
    same = (*same, "put_together")
    names = (*same, "dropped", "mismatched", "diverged", "any_batch")
    first, second = run_ranks(2, targets.several, tmp_path, names)
    assert first == second
    assert {name: first[name] for name in same} == dict.fromkeys(same, "")
    assert "the job has 2 processes but mesh dp=2,tp=2 has 4" in first["mismatched"]
    for said, (mine, theirs) in zip(
        first["diverged"], ((2, 3), (6, 7), (6, 7), (6, 6)), strict=True
    ):
        assert f"rank 0: ids int64[{mine}, 6], in train mode" in said
        assert f"rank 1: ids int64[{theirs}, 6], in" in said
    assert "rank 1: ids int64[6, 6], in eval mode" in first["diverged"][-1]
    problems, compiled, refused = first["any_batch"]
    assert (problems, compiled) == ([], 2)
    assert "dimension 1 of input 'ids' is 7; length is at least 1 and at most 6" in refused[0]
    assert "rank 0: ids int64[3, 6]" in refused[1]
    alone = autopar.parallelize(tiny(dropout=0.5), tokens(0), mesh="1")
    for found in first["dropped"]:
        torch.testing.assert_close(torch.tensor(found), alone(tokens(0)).detach())


def test_rank_0_plans_for_all_and_what_fails_there_fails_everywhere(tmp_path: Path) -> None:
    first, second = run_ranks(2, targets.several, tmp_path, ("planned_once", "failed"))
    assert first["planned_once"] == second["planned_once"] == (2, [2, 0])
    pin, defect, options, model, parts, after = zip(first["failed"], second["failed"], strict=True)
    assert pin[0] == pin[1]
    assert pin[0].startswith("AnnotationError: ")
    assert "up.weight" in pin[0]
    assert defect == ("OSError: no space", "RuntimeFailure: rank 0 failed: OSError: no space")
    assert options[0] == options[1]
    assert "rank 1 asks for another program than rank 0" in options[0]
    assert model[0].startswith("RuntimeFailure: rank 1 has no program: ")
    assert model[1].split(": ", 1)[1] in model[0]
    assert parts[0] == parts[1]
    assert "the ranks have different modules" in parts[0]
    assert after == ("", "")


def test_modules_that_are_gone_leave_no_threads_or_connections(tmp_path: Path) -> None:
    for found in run_ranks(2, targets.several, tmp_path, ("made_often",)):
        assert len(set(found["made_often"]["held"])) == 1
        assert "index out of range" in found["made_often"]["failed"]
        assert found["made_often"]["wrong"] < 1e-5
        assert found["made_often"]["watched"]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "name"), [(2, "fsdp"), (4, "2x2"), (2, "through_torch_compile")])
def test_a_loop_of_the_user_trains_it_like_the_original(
    tmp_path: Path, ranks: int, name: str
) -> None:
    found = run_ranks(ranks, targets.several, tmp_path, (name,))
    assert found == [{name: ""}] * ranks
