"""Checkpoints of real processes: saved beside the training, refused on all ranks alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autopar.runtime.training.opening import open_trainer
from tests.runtime.checkpoint.targets import (
    leave_beside_a_save,
    load_what_one_rank_finds_damaged,
    resume_from_a_file,
    save_beside,
    save_with_a_full_disk,
)
from tests.runtime.job.real import run_ranks
from tests.runtime.training.steps import LAYOUTS, batches, training_build

INDEX = "index.jsonl"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_build(tmp_path_factory.mktemp("build") / "b", LAYOUTS[2])


def test_steps_go_on_and_what_is_saved_is_the_state_of_the_call(
    tmp_path: Path, build: Path
) -> None:
    found = run_ranks(2, save_beside, build, tmp_path / "c")
    for each in found:
        assert each["meanwhile"] > 0
        assert each["before"] == each["after"]
    assert found[0] == found[1]


def test_who_leaves_while_a_save_is_under_way_is_noticed_at_once(
    tmp_path: Path, build: Path
) -> None:
    (said, seconds), _ = run_ranks(2, leave_beside_a_save, build, tmp_path / "c")
    assert said.startswith("rank 1 failed: it left the program")
    assert seconds < 20


@pytest.mark.parametrize("wait", [True, False])
def test_a_rank_that_cannot_write_is_an_error_of_all(
    tmp_path: Path, build: Path, wait: bool
) -> None:
    first, second = run_ranks(2, save_with_a_full_disk, build, tmp_path, wait)
    assert first == second
    ((_, said),) = first
    assert f"can't write {tmp_path}/1: rank 1: No space left on device" in said
    names = {path.name for path in tmp_path.iterdir()}
    # The save behind one that runs beside training is where that is refused.
    assert names == ({"0", "2", "last"} if wait else {"0", "last"})


def test_all_ranks_skip_what_one_finds_damaged(tmp_path: Path, build: Path) -> None:
    with open_trainer(build, virtual=True) as trainer:
        for batch in batches(2):
            trainer.step(batch)
            trainer.save_checkpoint(tmp_path, keep=2)
    newest = tmp_path / "step-00000002"
    # The last piece of a matrix that is split: rank 1 alone reads it.
    lines = map(json.loads, (newest / INDEX).read_text().splitlines()[2:])
    piece = next(line for line in lines if len(line["pieces"]) == 2)["pieces"][1]
    content = bytearray((newest / piece["file"]).read_bytes())
    content[piece["offset"] + piece["start"]] ^= 1
    (newest / piece["file"]).write_bytes(content)
    first, second = run_ranks(2, load_what_one_rank_finds_damaged, build, tmp_path)
    assert first == second
    assert first[0] == 1


def test_what_one_cannot_look_for_is_an_error_of_all_and_training_goes_on(
    tmp_path: Path, build: Path
) -> None:
    (tmp_path / "f").touch()
    first, second = run_ranks(2, resume_from_a_file, build, tmp_path / "f")
    assert first == second
    assert first.startswith(f"{tmp_path}/f is no folder")
