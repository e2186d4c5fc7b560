"""Parallel modules whose ranks bring different things are refused; their parts are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel import agreeing
from tests.runtime.job.real import run_ranks

DIFFERENT = "InvalidInputError: the ranks were given different batches: 'ids' "


def test_ranks_with_different_batches_are_told_so_and_can_go_on(tmp_path: Path) -> None:
    first, *others = run_ranks(3, agreeing.differing, tmp_path)
    assert first["sampler"].startswith(f"{DIFFERENT}is not the same on ranks 0, 1, 2; every rank")
    assert "leave DistributedSampler out" in first["sampler"]
    assert "pass local=True" in first["sampler"]
    assert first["one"].startswith(f"{DIFFERENT}of rank 2 is not what the other ranks have; every")
    alike = ("sampler", "one", "local", "norms", "everywhere", "states", "drawn", "seeds")
    for name in (*alike, "options", "values"):
        assert [each[name] for each in others] == [first[name]] * 2, name
    assert "rank 1 was given a wrong batch: the inputs hold no tensor" in first["none"]
    assert others[0]["none"].startswith("InvalidInputError: the inputs hold no tensor")
    assert first["right"] == ""
    assert first["wrong"] < 1e-5
    assert "local= is True on rank 0 and False on ranks 1, 2" in first["local"]
    assert "rank 2 was given a wrong batch: local='yes': give True or False" in first["flag"]
    assert "max_norm is 1.0 on rank 0 and 2.0 on rank 1 and 3.0 on rank 2" in first["norms"]
    assert "rank 1 refused load_weights: " in first["weights"]
    assert first["kept"] < 1e-5
    assert "rank 1 refused clip_grad_norm_: max_norm=None: it must be a" in first["none_norm"]
    assert "everywhere is True on rank 0 and False on ranks 1, 2" in first["everywhere"]
    assert "rank 0: clip_grad_norm_; ranks 1, 2: full_state_dict" in first["states"]
    assert [each["after"] for each in (first, *others)] == [""] * 3
    assert [each["unchecked"] for each in (first, *others)] == [""] * 3
    assert "random_calls is 0 on rank 0 and 1 on rank 1 and 2 on rank 2" in first["drawn"]
    assert "seed is 0 on rank 0 and 1 on rank 1 and 2 on rank 2" in first["seeds"]
    assert "rank 1 asks for another program than rank 0" in first["options"]
    (warning,) = first["rounding"]
    assert "by rounding only" in warning
    assert "'input' is not the same on ranks 0, 1, 2" in first["values"]


@pytest.mark.parametrize(
    ("ranks", "mesh", "strategy", "axis"),
    [(4, "dp=4", "ddp:dp", "dp"), (4, "dp=2,tp=2", "fsdp:dp,tensor:tp", "dp")],
)
def test_gradients_of_parts_are_those_of_the_batch(
    ranks: int, mesh: str, strategy: str, axis: str
) -> None:
    _check_parts(ranks, mesh, strategy, axis)


@pytest.mark.slow
def test_gradients_of_parts_on_three_by_two() -> None:
    _check_parts(6, "dp=3,tp=2", "fsdp:dp,tensor:tp", "dp")


def _check_parts(ranks: int, mesh: str, strategy: str, axis: str) -> None:
    found = run_ranks(ranks, agreeing.in_parts, mesh, strategy, axis)
    for *problems, refused, after in found:
        assert problems == []
        assert refused == found[0][-2]
        assert "the parts of 'ids' make no whole: rank " in refused
        assert after == ""


def test_an_argument_local_of_the_model_is_the_models(tmp_path: Path) -> None:
    first, second = run_ranks(2, agreeing.own_argument)
    assert first == second
    dims, placed, whole = first
    assert "how ranks share 'input' isn't known: the example inputs have none of 3" in dims
    assert "'input' is a DTensor, which says itself what part of a tensor it is" in placed
    assert whole == ""
