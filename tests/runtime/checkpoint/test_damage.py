"""Damaged checkpoints: whatever counts is noticed, named, and refused; nothing is taken over."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from autopar.base.errors import InvalidInputError
from autopar.runtime.checkpoint.index import DamagedCheckpoint
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from tests.runtime.training.steps import LAYOUTS, Reference, assert_same, batches, training_build

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

DATA, INDEX, METADATA = "__0_0.distcp", "index.jsonl", ".metadata"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_build(tmp_path_factory.mktemp("build") / "b", LAYOUTS[7])


@pytest.fixture(scope="module")
def trainer(build: Path) -> Trainer:
    return open_trainer(build, virtual=True)


@pytest.fixture(scope="module")
def saved(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    trainer.step(batches(1)[0])
    folder = tmp_path_factory.mktemp("saved")
    for number in range(2):
        trainer.save_checkpoint(folder / str(number))
        trainer.step(batches(2)[1])
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved / "0", tmp_path / "c"))


def change(path: Path, at: int, new: Callable[[int], int], length: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + length] = bytes(map(new, content[at : at + length]))
    path.write_bytes(content)


@pytest.mark.parametrize("name", [DATA, INDEX])
def test_every_flipped_bit_is_noticed(folder: Path, trainer: Trainer, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    drawn = random.Random(name)
    for _ in range(40):
        at, bit = drawn.randrange(len(whole)), drawn.randrange(8)
        change(path, at, lambda byte, bit=bit: byte ^ (1 << bit))  # type: ignore[misc]
        with pytest.raises(DamagedCheckpoint) as raised:
            trainer.load_checkpoint(folder)
        assert str(path) in str(raised.value)
        path.write_bytes(whole)
    trainer.load_checkpoint(folder)


def test_a_damaged_piece_names_its_tensor(folder: Path, trainer: Trainer) -> None:
    for line in (folder / INDEX).read_text().splitlines()[2:]:
        entry = json.loads(line)
        piece = entry["pieces"][-1]
        whole = (folder / DATA).read_bytes()
        change(folder / DATA, piece["offset"] + piece["start"], lambda byte: byte ^ 128)
        with pytest.raises(DamagedCheckpoint, match=f"'{entry['names'][0]}' in .*{DATA} isn't"):
            trainer.load_checkpoint(folder)
        (folder / DATA).write_bytes(whole)


def test_a_zeroed_block_is_noticed(folder: Path, trainer: Trainer) -> None:
    change(folder / DATA, 4096, lambda byte: 0, 4096)
    with pytest.raises(DamagedCheckpoint, match="isn't what was saved"):
        trainer.load_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "length", "said"),
    [
        (DATA, 100, "has 100 bytes, .* were saved; 'model.up.weight' can't be read"),
        (DATA, 0, "has 0 bytes"),
        (INDEX, 300, "index.jsonl is damaged"),
        (INDEX, 0, "index.jsonl is damaged"),
    ],
)
def test_files_that_are_cut_off(
    folder: Path, trainer: Trainer, name: str, length: int, said: str
) -> None:
    with (folder / name).open("r+b") as file:
        file.truncate(length)
    with pytest.raises(DamagedCheckpoint, match=said):
        trainer.load_checkpoint(folder)


def test_files_that_are_missing(folder: Path, trainer: Trainer) -> None:
    (folder / DATA).rename(folder / "away")
    with pytest.raises(DamagedCheckpoint, match=f"{DATA} is missing; 'model.up.weight'"):
        trainer.load_checkpoint(folder)
    (folder / "away").rename(folder / DATA)
    (folder / INDEX).unlink()
    with pytest.raises(DamagedCheckpoint, match=r"index.jsonl is missing, which says what"):
        trainer.load_checkpoint(folder)
    (folder / METADATA).unlink()
    with pytest.raises(InvalidInputError, match="is no checkpoint"):
        trainer.load_checkpoint(folder)


@pytest.mark.parametrize("name", [DATA, INDEX])
def test_files_of_another_save(folder: Path, trainer: Trainer, saved: Path, name: str) -> None:
    shutil.copy(saved / "1" / name, folder / name)
    with pytest.raises(DamagedCheckpoint, match="isn't what was saved"):
        trainer.load_checkpoint(folder)


def test_pieces_that_were_swapped(folder: Path, trainer: Trainer) -> None:
    content = bytearray((folder / DATA).read_bytes())
    half = len(content) // 2
    (folder / DATA).write_bytes(content[half:] + content[:half])
    with pytest.raises(DamagedCheckpoint, match="isn't what was saved"):
        trainer.load_checkpoint(folder)


def test_what_only_others_read_does_not_matter(folder: Path, trainer: Trainer) -> None:
    trainer.load_checkpoint(folder)
    before = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    for name in (METADATA, "__values.distcp"):
        (folder / name).write_bytes(b"anything")
    trainer.load_checkpoint(folder)
    assert trainer.steps == 1
    assert_same(before, trainer.state_dict())


def test_training_does_not_go_on_with_half_a_checkpoint(build: Path, folder: Path) -> None:
    trainer = open_trainer(build, virtual=True)
    (folder / DATA).write_bytes(bytes(len((folder / DATA).read_bytes())))
    with pytest.raises(DamagedCheckpoint):
        trainer.load_checkpoint(folder)
    with pytest.raises(InvalidInputError, match=r"no values of .*'down.weight'"):
        trainer.step(batches(1)[0])
    with pytest.raises(InvalidInputError, match="no values of"):
        trainer.save_checkpoint(folder)


def test_a_trained_state_outlives_what_is_damaged(build: Path, folder: Path) -> None:
    trainer, other = (open_trainer(build, virtual=True) for _ in range(2))
    first, second, third = batches(3)
    for each in (trainer, other):
        each.step(first)
        each.step(second)
    change(folder / DATA, len((folder / DATA).read_bytes()) // 2, lambda byte: byte ^ 1)
    with pytest.raises(DamagedCheckpoint):
        trainer.load_checkpoint(folder)
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(DamagedCheckpoint):
        trainer.resume(folder)
    assert trainer.steps == 2
    assert trainer.step(third).equal(other.step(third))
    assert_same(trainer.state_dict(), other.state_dict())


def foreign(folder: Path) -> Path:
    one = Reference.of_seed(3)
    one.step(batches(1)[0])
    model, optimizer = get_state_dict(one.model, one.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder, no_dist=True)
    return folder


def test_damaged_metadata_of_plain_pytorch(tmp_path: Path, trainer: Trainer) -> None:
    """Damage that can't be noticed without digests may load; nothing but our errors is raised."""
    folder = foreign(tmp_path / "c")
    whole = (folder / METADATA).read_bytes()
    drawn = random.Random(0)
    refused = 0
    for round_ in range(60):
        content = bytearray(whole)
        if round_ % 3:
            at = drawn.randrange(len(content))
            content[at] ^= 1 << drawn.randrange(8)
        else:
            del content[drawn.randrange(len(content)) :]
        (folder / METADATA).write_bytes(content)
        try:
            trainer.load_checkpoint(folder)
        except InvalidInputError:
            refused += 1
    assert refused > 40


def test_damaged_files_of_plain_pytorch(tmp_path: Path, trainer: Trainer) -> None:
    folder = foreign(tmp_path / "c")
    whole = (folder / DATA).read_bytes()
    drawn = random.Random(0)
    for length in [0, 10, len(whole) // 2, len(whole) - 10]:
        (folder / DATA).write_bytes(whole[:length])
        with pytest.raises(DamagedCheckpoint, match=DATA):
            trainer.load_checkpoint(folder)
    for _ in range(60):
        content = bytearray(whole)
        for _ in range(8):
            content[drawn.randrange(len(content))] = drawn.randrange(256)
        (folder / DATA).write_bytes(content)
        with suppress(DamagedCheckpoint):
            trainer.load_checkpoint(folder)


def test_strided_tensors_of_plain_pytorch(tmp_path: Path, trainer: Trainer) -> None:
    """DCP keeps how a tensor lies in memory."""
    folder = foreign(tmp_path / "c")
    trainer.load_checkpoint(folder)
    state = trainer.state_dict()
    read = {f"model.{name}": torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(read, checkpoint_id=folder, no_dist=True)
    turned = {name: tensor.t().contiguous().t() for name, tensor in read.items() if tensor.ndim > 1}
    model, optimizer = get_state_dict((one := Reference.of_seed(3)).model, one.optimizer)
    for name, tensor in turned.items():
        model[name.removeprefix("model.")] = tensor
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=tmp_path / "d", no_dist=True)
    trainer.load_checkpoint(tmp_path / "d")
    for name, tensor in turned.items():
        assert torch.equal(trainer.state_dict()[name.removeprefix("model.")], tensor)
