"""Parallel modules in pipelines: they compute what the module does, whoever has which stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import autopar
from autopar.base.errors import AutoparError
from tests.parallel import pipelines
from tests.parallel.pipelines import MODELS, Deep, rows
from tests.parallel.tiny import tiny, tokens
from tests.runtime.job.real import run_ranks

TWO = [
    ("tied", {"mesh": "pp=2"}),
    ("scored", {"mesh": "pp=2", "parameters": "local"}),
    ("deep", {"mesh": "pp=2", "strategy": None}),
    ("marked", {"mesh": "pp=2", "microbatches": 1}),
    ("pinned", {"mesh": "pp=2", "strategy": None}),
]
FOUR = [
    ("tied", {"mesh": "pp=4"}),
    ("scored", {"mesh": "pp=2,dp=2", "strategy": "fsdp:dp"}),
    ("deep", {"mesh": "dp=2,pp=2", "parameters": "local"}),
    ("tied", {"mesh": "pp=2,tp=2", "strategy": "tensor:tp"}),
]
MORE = [
    *((name, {"mesh": "pp=4", "microbatches": 8}) for name in ("scored", "deep")),
    *((name, {"mesh": "dp=2,pp=2", "strategy": "data:dp"}) for name in ("tied", "scored", "deep")),
    *((name, {"mesh": "pp=2,tp=2"}) for name in ("tied", "scored", "deep")),
    ("deep", {"mesh": "pp=2,tp=2", "strategy": "tensor:tp", "parameters": "local"}),
    ("marked", {"mesh": "pp=2,dp=2"}),
    ("tied", {"mesh": "pp=2,dp=2", "placement": (0, 2, 1, 3)}),
]


@pytest.mark.parametrize("microbatches", [2, 3, 9])
@pytest.mark.parametrize("name", ["tied", "scored", "deep"])
def test_microbatches_compute_what_the_whole_batch_does(name: str, microbatches: int) -> None:
    make, batch, loss = MODELS[name]
    alone, parallel = (
        make(),
        autopar.parallelize(make(), batch(0), mesh="1", microbatches=microbatches),
    )
    losses = [_trained_once(each, batch(0), loss) for each in (parallel, alone)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(dict(parallel.state_dict()), dict(alone.state_dict()))
    for mine, theirs in zip(parallel.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def _trained_once(model: Any, batch: Tensor, loss: Callable[[Any], Tensor]) -> Tensor:
    value = loss(model(batch))
    value.backward()  # type: ignore[no-untyped-call]
    return value.detach()


@pytest.mark.parametrize(
    ("count", "cases"),
    [(2, TWO), (4, FOUR), pytest.param(4, MORE, marks=pytest.mark.slow)],
    ids=["two", "four", "more"],
)
def test_a_loop_of_the_user_trains_it_like_the_original(
    count: int, cases: list[tuple[str, dict[str, Any]]]
) -> None:
    assert run_ranks(count, pipelines.compared, cases) == [[]] * count


def test_three_processes_train_it_like_the_original() -> None:
    cases = [
        ("deep", {"mesh": "pp=3"}),
        ("tied", {"mesh": "pp=3", "microbatches": 2}),
        ("beside", {"mesh": "3", "pipeline": "", "microbatches": 1, "strategy": None}),
    ]
    assert run_ranks(3, pipelines.compared, cases) == [[]] * 3


def test_what_it_keeps_is_saved_and_loaded(tmp_path: Path) -> None:
    names = ("saved", "drawn", "refused")
    first, second = run_ranks(2, pipelines.several, tmp_path, names)
    assert first == second
    assert first["saved"] == []
    alone = autopar.parallelize(Deep(0.5), rows(0), mesh="1")
    wanted = [alone(rows(number))["y"].detach() for number in range(2)]
    for found in first["drawn"]:
        torch.testing.assert_close(list(map(torch.tensor, found)), wanted)
    index, other, clipping = first["refused"]
    assert "is out of range in 'ids'" in index
    assert "ids" in other
    assert "same mesh" in clipping


def test_others_go_on_from_its_checkpoints_and_ranks_bring_parts(tmp_path: Path) -> None:
    for found in run_ranks(4, pipelines.several, tmp_path, ("checkpointed", "handed")):
        assert found == {"checkpointed": [], "handed": []}


@pytest.mark.slow
def test_it_runs_through_torch_compile(tmp_path: Path) -> None:
    for found in run_ranks(2, pipelines.several, tmp_path, ("through_torch_compile",)):
        assert found == {"through_torch_compile": []}


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "zb-v", "auto"])
def test_schedules_that_need_the_loss_are_refused(schedule: str) -> None:
    said = f"schedule='{schedule}': a backward pass would begin before all forward passes are done"
    with pytest.raises(AutoparError, match=said) as raised:
        autopar.parallelize(tiny(), tokens(0), mesh="pp=1", pipeline="pp", schedule=schedule)
    assert "give schedule='gpipe', or compile the whole step with" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"pipeline": "qp", "mesh": "pp=1"},
            "'qp': the mesh has no such axis; did you mean pp",
        ),
        ({"pipeline": "pp", "devices": 1}, "is an axis of a certain mesh; give mesh="),
        ({"microbatches": 0, "mesh": "1"}, "microbatches=0: give a whole number from 1 on"),
        ({"schedule": "1f1", "mesh": "1"}, "schedule='1f1': give .*; did you mean 1f1b"),
        ({"pipeline": 3, "mesh": "1"}, "pipeline=3"),
    ],
)
def test_what_is_no_pipeline_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(AutoparError, match=said):
        autopar.parallelize(tiny(), tokens(0), **options)


def test_what_has_no_batch_has_no_microbatches() -> None:
    with pytest.raises(AutoparError, match="microbatches=2: "):
        autopar.parallelize(torch.nn.Linear(4, 4), torch.ones(4), mesh="1", microbatches=2)
