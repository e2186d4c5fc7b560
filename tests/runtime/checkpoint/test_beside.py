"""Saves that run beside the training: one at a time, one copy, and no failure gets lost."""

from __future__ import annotations

import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from autopar.base.errors import InvalidInputError
from autopar.runtime.checkpoint import checkpoint
from autopar.runtime.checkpoint import files as checkpoint_files
from autopar.runtime.checkpoint.files import Rectangle
from autopar.runtime.training.opening import open_trainer
from tests.runtime.training.steps import LAYOUTS, assert_same, batches, training_build

BATCHES = batches(8)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_build(tmp_path_factory.mktemp("build") / "b", LAYOUTS[2])


class Disk:
    """A slow disk, that knows what is copied to memory for it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.writing = self.most_writing = self.most_copies = 0
        self.copies: list[weakref.ref[torch.Tensor]] = []
        self.write, self.copy = checkpoint.write_rectangles, checkpoint_files.copied
        patch.setattr(checkpoint, "write_rectangles", self.written)
        patch.setattr(checkpoint_files, "copied", self.copied)

    def written(self, folder: Path, rank: int, rectangles: Sequence[Rectangle]) -> None:
        self.writing += 1
        self.most_writing = max(self.most_writing, self.writing)
        time.sleep(0.2)
        self.write(folder, rank, rectangles)
        self.writing -= 1

    def copied(self, rectangles: Sequence[Rectangle]) -> list[Rectangle]:
        assert self.alive() == 0
        found = self.copy(rectangles)
        self.copies += [weakref.ref(each.elements) for each in found]
        return found

    def alive(self) -> int:
        return sum(copy() is not None for copy in self.copies)


def test_a_save_waits_for_the_one_before_and_its_memory(
    tmp_path: Path, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    with open_trainer(build, virtual=True) as trainer:
        for number in range(3):
            trainer.step(BATCHES[number])
            trainer.save_checkpoint(tmp_path / str(number), wait=False)
            assert disk.alive() > 0
            # What is behind the save doesn't get into it.
            state = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
            trainer.step(BATCHES[7])
    assert disk.most_writing == 1
    assert disk.alive() == 0
    with open_trainer(build, virtual=True) as trainer:
        trainer.load_checkpoint(tmp_path / "2")
        assert_same(trainer.state_dict(), state)
        assert trainer.steps == 5


def test_memory_is_let_go_when_it_is_written(
    tmp_path: Path, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    with open_trainer(build, virtual=True) as trainer:
        trainer.save_checkpoint(tmp_path / "c", wait=False)
        assert trainer._checkpoints.saving is not None
        trainer._checkpoints.saving.join()
        assert disk.alive() == 0


def test_a_failure_is_told_once_and_training_goes_on(
    tmp_path: Path, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise RuntimeError("the disk is on fire")

    trainer = open_trainer(build, virtual=True)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_rectangles", fails)
        trainer.save_checkpoint(tmp_path / "c", wait=False)
        assert trainer._checkpoints.saving is not None
        trainer._checkpoints.saving.join()
    with pytest.raises(InvalidInputError, match="rank 0: the disk is on fire"):
        trainer.step(BATCHES[0])
    trainer.step(BATCHES[0])
    trainer.save_checkpoint(tmp_path / "c", wait=False)
    trainer.close()
    assert (tmp_path / "c").is_dir()
    assert trainer.steps == 1


ENDS = """
import sys, time
import autopar
from autopar.runtime.checkpoint import checkpoint

def fails(*args):
    time.sleep(0.5)
    raise OSError(28, "No space left on device")

write, checkpoint.write_rectangles = checkpoint.write_rectangles, fails
trainer = autopar.load(sys.argv[1], virtual=True)
trainer.save_checkpoint(sys.argv[2], wait=False)
if sys.argv[3] == "dropped":
    del trainer
"""


@pytest.mark.parametrize("how", ["dropped", "kept"])
def test_a_failure_behind_the_end_of_a_script_is_said(
    tmp_path: Path, build: Path, how: str
) -> None:
    command = [sys.executable, "-c", ENDS, str(build), str(tmp_path / "c"), how]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert f"can't write {tmp_path / 'c'}: rank 0: No space left on device" in said
    assert said.count("a checkpoint wasn't saved") == (how == "dropped")
