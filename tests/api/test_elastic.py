"""Elastic training: a build for each number of processes, made by one rank while others wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autopar import elastic
from autopar.base.errors import InvalidInputError
from autopar.compiled import CompiledModel
from autopar.runtime.job.processes import Processes
from tests.api.elastic_targets import compiling, preparing, stopping
from tests.runtime.job.real import run_ranks
from tests.runtime.training.steps import LAYOUTS, batches, compiled_step, training_build


class Compiling:
    """Compiles, and counts how often."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size: int) -> CompiledModel:
        self.sizes.append(size)
        return compiled_step(LAYOUTS[0])


def opened(compile: Compiling, folder: Path, **options: Any) -> int:
    """Trains a step, saves, and returns how many were done."""
    alone = Processes()
    with elastic.load(
        compile, folder / "b", resume=folder / "s", processes=alone, **options
    ) as trainer:
        trainer.step(batches(1)[0])
        trainer.save_checkpoint(folder / "s", keep=2)
        return trainer.steps


def test_a_build_is_made_once_and_training_goes_on(tmp_path: Path) -> None:
    compile = Compiling()
    assert [opened(compile, tmp_path) for _ in range(3)] == [1, 2, 3]
    assert compile.sizes == [1]
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"1", "1.json"}


def test_a_build_is_made_again_when_it_was_made_of_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile = Compiling()
    opened(compile, tmp_path, config={"width": 4})
    opened(compile, tmp_path, config={"width": 4})
    assert len(compile.sizes) == 1
    opened(compile, tmp_path, config={"width": 5})
    assert len(compile.sizes) == 2
    monkeypatch.setattr("sys.argv", ["train.py", "--width", "5"])
    opened(compile, tmp_path, config={"width": 5})
    assert len(compile.sizes) == 3
    monkeypatch.setattr(elastic, "__version__", "0.0.0")
    opened(compile, tmp_path, config={"width": 5})
    assert len(compile.sizes) == 4


def test_a_changed_module_of_the_user_makes_other_ingredients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "model_of_the_user.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    source.write_text("WIDTH = 4\n")
    before = elastic.ingredients()
    __import__("model_of_the_user")
    imported = elastic.ingredients()
    source.write_text("WIDTH = 5\n")
    assert len({json.dumps(each) for each in (before, imported, elastic.ingredients())}) == 3
    assert json.loads(json.dumps(imported)) == imported


@pytest.mark.parametrize("damage", ["record", "other build", "incomplete"])
def test_a_build_that_is_not_what_was_made_is_made_again(tmp_path: Path, damage: str) -> None:
    compile = Compiling()
    opened(compile, tmp_path)
    folder = tmp_path / "b"
    if damage == "record":
        (folder / "1.json").write_text("{")
    elif damage == "other build":
        training_build(folder / "1", LAYOUTS[0], clip_grad_norm=1.0)
    else:
        (folder / "1/serial.pb").unlink()
    assert opened(compile, tmp_path) == 2
    assert len(compile.sizes) == 2
    assert opened(compile, tmp_path) == 3
    assert len(compile.sizes) == 2


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    def larger(size: int) -> CompiledModel:
        return compiled_step(LAYOUTS[1])

    with pytest.raises(InvalidInputError) as refused:
        elastic.load(larger, tmp_path / "b", processes=Processes())
    assert str(refused.value) == (
        "compile(1) returned a program for 2 ranks; choose a mesh of as many ranks as it is called"
        " with"
    )
    assert not (tmp_path / "b").exists()
    with pytest.raises(InvalidInputError, match="config= can't be kept beside the build"):
        elastic.load(Compiling(), tmp_path / "b", processes=Processes(), config={1.5j})
    (tmp_path / "c").write_text("")
    with pytest.raises(InvalidInputError, match="/c/1"):
        elastic.load(Compiling(), tmp_path / "c", processes=Processes())


def test_ranks_wait_for_the_one_that_compiles_longer_than_for_anything_else(
    tmp_path: Path,
) -> None:
    assert run_ranks(2, compiling, tmp_path, "slowly") == [1, 1]
    assert run_ranks(2, compiling, tmp_path, "not at all") == [2, 2]


@pytest.mark.parametrize(
    ("how", "first", "others"),
    [
        ("refuses", "! the model is too large", "! rank 0 failed: the model is too large"),
        ("fails", "! ZeroDivisionError: division by zero", "! rank 0 failed: ZeroDivisionError: "),
        ("ends", "! SystemExit: 3", "! rank 0 failed: SystemExit: 3"),
        ("is killed", -9, "! rank 0 failed: it ended without a word (killed?), and the store"),
        ("sleeps", None, "! rank 0 failed: no word from it within 2 s"),
    ],
)
def test_what_goes_wrong_on_the_rank_that_compiles_ends_all(
    tmp_path: Path, how: str, first: str | int | None, others: str
) -> None:
    found = run_ranks(3, preparing, tmp_path, how)
    if isinstance(first, str):
        assert found[0].startswith(first)
    elif first is not None:
        assert found[0] == first
    assert all(str(each).startswith(others) for each in found[1:]), found


def test_all_ranks_stop_behind_the_same_step_when_one_is_asked_to(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[3])
    assert run_ranks(3, stopping, build) == [[False] * 4 + [True]] * 3
