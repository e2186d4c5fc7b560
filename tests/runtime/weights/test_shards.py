"""Weights written as a folder of Hugging Face's: whole, or not taken for a model."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.runtime.ports.boxes import whole_box
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from autopar.runtime.weights import shards as weight_shards
from autopar.runtime.weights.shards import write_folder
from autopar.runtime.weights.sources import INDEX, WHOLE
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import Entry
from tests.runtime.execute.targets import save_where_nothing_can, saves_folders
from tests.runtime.job.real import run_ranks
from tests.runtime.training.steps import LAYOUTS, assert_same, batches, training_build


def tensors(value: float = 1.0) -> dict[str, Tensor]:
    return {f"layer.{at}": torch.full((10,), value + at) for at in range(5)}


def write(folder: Path, value: float = 1.0, shard_bytes: int = 80) -> None:
    held = tensors(value)
    entries = {name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in held.items()}
    write_folder(folder, entries, held.__getitem__, shard_bytes)


def read(folder: Path) -> dict[str, Tensor]:
    with WeightFile(folder) as file:
        shapes = {name: file.entries[name].shape for name in file.entries}
        return {
            name: file.read(name, torch.float32, shape, whole_box(shape))
            for name, shape in shapes.items()
        }


SHARDS = [f"model-0000{at}-of-00003.safetensors" for at in (1, 2, 3)]


def test_shards_and_their_index(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    write(tmp_path / "model")
    assert sorted(os.listdir(tmp_path / "model")) == ["config.json", *SHARDS, INDEX]
    index = json.loads((tmp_path / "model" / INDEX).read_text())
    assert index["metadata"] == {"total_size": 200}
    assert index["weight_map"] == {f"layer.{at}": SHARDS[at // 2] for at in range(5)}
    assert_same(
        load_file(tmp_path / "model" / SHARDS[1]), {k: tensors()[k] for k in ("layer.2", "layer.3")}
    )
    assert_same(read(tmp_path / "model"), tensors())


def test_other_sizes_replace_one_another(tmp_path: Path) -> None:
    """What is left of an earlier save would be read by somebody."""
    for value, (size, names) in enumerate(
        [(80, [*SHARDS, INDEX]), (1000, [WHOLE]), (120, None), (80, [*SHARDS, INDEX]), (1, None)]
    ):
        write(tmp_path, float(value), size)
        assert_same(read(tmp_path), tensors(float(value)))
        assert names is None or sorted(os.listdir(tmp_path)) == names


def what_is_in(folder: Path) -> float | None:
    """Returns which model a folder holds; None if none."""
    try:
        return read(folder)["layer.0"][0].item()
    except InvalidInputError as error:
        if "it has no model.safetensors" in str(error) or f"but no {INDEX}" in str(error):
            return None
        raise


@pytest.mark.parametrize("before", [80, 1000])
@pytest.mark.parametrize("after", [80, 120, 1000])
def test_an_interrupted_save_leaves_the_old_or_the_new_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    """Interrupted at each of its changes of the folder, and killed there."""
    steps = 0
    for stop in range(100):
        folder = tmp_path / str(stop)
        write(folder, 1.0, before)
        steps = 0

        def counted(change: Callable[..., Any], limit: int = stop) -> Callable[..., Any]:
            def counting(*args: Any, **kwargs: Any) -> Any:
                nonlocal steps
                steps += 1
                if steps > limit:
                    raise KeyboardInterrupt
                return change(*args, **kwargs)

            return counting

        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "write_text"):
                patch.setattr(Path, name, counted(getattr(Path, name)))
            patch.setattr(weight_shards, "write_tensors", counted(weight_shards.write_tensors))
            try:
                write(folder, 7.0, after)
            except KeyboardInterrupt:
                pass
            else:
                break
        if (found := what_is_in(folder)) is not None:
            assert found in (1.0, 7.0)
            assert_same(read(folder), tensors(found))
        write(folder, 3.0, after)
        assert_same(read(folder), tensors(3.0))
        assert not [name for name in os.listdir(folder) if name.endswith(".new")]
    else:
        pytest.fail("it never came to an end")


def test_a_full_disk_says_so_and_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(weight_shards, "sync_file", full)
    with pytest.raises(InvalidInputError, match=r"can't write .*: No space left on device"):
        write(tmp_path, 2.0)
    assert sorted(os.listdir(tmp_path)) == [*SHARDS, INDEX]
    assert_same(read(tmp_path), tensors())


def test_two_who_write_at_once(tmp_path: Path) -> None:
    with (
        weight_shards._alone(tmp_path),
        pytest.raises(InvalidInputError, match="another process is writing weights there"),
    ):
        write(tmp_path)


def test_a_folder_that_is_replaced_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock has to be on what is there now, or two would write at once."""
    folder = tmp_path / "model"
    folder.mkdir()
    lock, replaced = fcntl.flock, []

    def replacing(descriptor: int, how: int) -> None:
        if not replaced:
            replaced.append(folder.rename(tmp_path / "away"))
            folder.mkdir()
        lock(descriptor, how)

    monkeypatch.setattr(weight_shards.fcntl, "flock", replacing)
    with (
        weight_shards._alone(folder),
        pytest.raises(InvalidInputError, match="another process is writing weights there"),
    ):
        write(folder)


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK])
def test_file_systems_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_locks(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(weight_shards.fcntl, "flock", no_locks)
    write(tmp_path)
    assert_same(read(tmp_path), tensors())


def test_descriptors_are_closed_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with weight_shards._alone(tmp_path):
        for _ in range(3):
            with pytest.raises(InvalidInputError):
                write(tmp_path)
    monkeypatch.setattr(weight_shards.fcntl, "flock", interrupted)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def opened(tmp_path: Path) -> Trainer:
    return open_trainer(training_build(tmp_path / "build", LAYOUTS[7]), virtual=True)


def test_a_trainer_saves_a_folder_and_goes_on_from_it(tmp_path: Path) -> None:
    trainer = opened(tmp_path)
    trainer.save_weights(tmp_path / "many", max_shard_bytes=100)
    (tmp_path / "whole").mkdir()
    trainer.save_weights(tmp_path / "whole")
    assert os.listdir(tmp_path / "whole") == [WHOLE]
    assert (tmp_path / "many" / INDEX).exists()
    saved = trainer.state_dict()
    for folder in ("many", "whole"):
        trainer.load_state_dict({name: torch.zeros_like(held) for name, held in saved.items()})
        trainer.load_weights(tmp_path / folder)
        assert_same(trainer.state_dict(), saved)
    with pytest.raises(InvalidInputError, match="max_shard_bytes=0"):
        trainer.save_weights(tmp_path / "none", max_shard_bytes=0)


def test_a_file_that_cannot_be_written_is_refused_on_all_ranks_and_training_goes_on(
    tmp_path: Path,
) -> None:
    build = training_build(tmp_path / "build", ("dp=2", "fsdp:dp", {}))
    (one, loss), other = run_ranks(2, save_where_nothing_can, build, batches(1)[0], tmp_path)
    assert one.startswith(f"can't write {tmp_path / 'absent' / 'w.safetensors'}: No such file")
    assert other == (one, loss)
    assert (tmp_path / "w.safetensors").exists()


def test_ranks_save_a_folder_together(tmp_path: Path) -> None:
    build = training_build(tmp_path / "build", ("dp=3", "fsdp:dp", {}))
    assert run_ranks(3, saves_folders, build, batches(1), tmp_path) == [""] * 3
