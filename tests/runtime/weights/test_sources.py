"""Weights as users have them: files, folders of Hugging Face's, and what is neither."""

from __future__ import annotations

import json
import os
import struct
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.runtime.api import load
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from autopar.runtime.weights.sources import INDEX, WHOLE
from autopar.runtime.weights.weights import WeightFile
from tests.runtime.training.steps import LAYOUTS, Model, assert_same, training_build

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def weights(seed: int = 9) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {name: torch.randn_like(tensor) for name, tensor in Model().state_dict().items()}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_build(tmp_path_factory.mktemp("compiled") / "build", LAYOUTS[5])


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A folder of two files and their index."""
    folder = tmp_path / "model"
    folder.mkdir()
    names = sorted(weights())
    parts = {FIRST: names[:2], SECOND: names[2:]}
    for file, part in parts.items():
        save_file({name: weights()[name] for name in part}, folder / file, {"format": "pt"})
    write_index(folder, {name: file for file, part in parts.items() for name in part})
    (folder / "config.json").write_text("{}")
    return folder


def write_index(folder: Path, weight_map: Mapping[str, object]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def weight_map(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return found


def opened(build: Path, **options: object) -> Trainer:
    return open_trainer(build, virtual=True, **options)


def test_a_sharded_folder_its_index_and_a_whole_folder(build: Path, sharded: Path) -> None:
    whole = sharded.parent / "whole"
    whole.mkdir()
    save_file(weights(), whole / WHOLE)
    both = [sharded / FIRST, sharded / SECOND]
    for path in (sharded, sharded / INDEX, str(sharded), whole, both):
        assert_same(opened(build, weights=path).state_dict(), weights())
    trainer = opened(build)
    for path in (sharded, sharded / INDEX, whole):
        trainer.load_state_dict(weights(1))
        trainer.load_weights(path)
        assert_same(trainer.state_dict(), weights())
    assert_same(load(build, virtual=True, weights=whole).state_dict(), weights())


def test_a_whole_file_counts_before_an_index_as_for_transformers(sharded: Path) -> None:
    save_file({"other": torch.ones(1)}, sharded / WHOLE)
    with WeightFile(sharded) as file:
        assert list(file.entries) == ["other"]


def test_links_as_in_the_cache_of_the_hub(build: Path, sharded: Path) -> None:
    snapshot = sharded.parent / "hub" / "snapshot"
    snapshot.mkdir(parents=True)
    for name in (FIRST, SECOND, INDEX):
        (snapshot / name).symlink_to(Path("..", "..", "model", name))
    assert_same(opened(build, weights=snapshot).state_dict(), weights())


def test_another_build_is_a_folder_of_weights_too(tmp_path: Path, build: Path) -> None:
    trained = opened(build)
    trained.load_state_dict(weights())
    trained.save_weights(tmp_path / "trained")
    assert_same(opened(build, weights=build).state_dict(), opened(build).state_dict())


def without_shard(folder: Path) -> None:
    (folder / SECOND).unlink()


def without_tensor(folder: Path) -> None:
    held = load_file(folder / SECOND)
    held.pop("up.weight")
    save_file(held, folder / SECOND)


def outside(folder: Path) -> None:
    write_index(folder, {**weight_map(folder), "up.weight": "../model/" + SECOND})


def absolute(folder: Path) -> None:
    write_index(folder, {**weight_map(folder), "up.weight": str(folder / SECOND)})


def twice(folder: Path) -> None:
    held = load_file(folder / SECOND)
    save_file({**held, "down.bias": torch.ones(5)}, folder / SECOND)


def twice_in_index(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace('{"down', f'{{"up.weight": "{FIRST}", "down'))


def no_json(folder: Path) -> None:
    (folder / INDEX).write_text("{")


def deep_json(folder: Path) -> None:
    (folder / INDEX).write_text("[" * 100_000)


def other_json(folder: Path) -> None:
    (folder / INDEX).write_text('{"weight_map": {"a": 1}}')


def no_map(folder: Path) -> None:
    (folder / INDEX).write_text("[]")


def a_pipe(folder: Path) -> None:
    (folder / SECOND).unlink()
    os.mkfifo(folder / SECOND)


def only(name: str, content: bytes = b"") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in folder.iterdir():
            path.unlink()
        (folder / name).write_bytes(content)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_shard, f"index.json: it names {SECOND}, which is not in .*copy the whole folder"),
        (without_tensor, f"{SECOND} has no tensor 'up.weight', though the index beside it says so"),
        (outside, "index.json: weight_map says that 'up.weight' is in '../model/.*no file beside"),
        (absolute, "weight_map says that 'up.weight' is in '/.*which is no file beside the index"),
        (twice, f"tensor 'down.bias' is in .*{FIRST} and in .*{SECOND}; which of them counts"),
        (twice_in_index, r"index.json is no index of weights: 'up.weight' is there twice"),
        (no_json, "index.json is no index of weights: Expecting property name"),
        (deep_json, "index.json is no index of weights: maximum recursion depth"),
        (other_json, "weight_map says that 'a' is in 1, which is no file"),
        (no_map, "index.json is no index of weights: it has no weight_map"),
        (a_pipe, f"can't read weights from .*{SECOND}: it is a pipe or a device; give a file"),
        (
            only("config.json"),
            "model: it has no model.safetensors, no model.safetensors.index.json",
        ),
        (only("pytorch_model.bin"), "but pytorch_model.bin, whose format can run code .*save_file"),
        (only("model.Q4_K.gguf"), "it has no safetensors file, but model.Q4_K.gguf; load it in"),
        (only(".metadata"), "it is a checkpoint; open the trainer and call its load_checkpoint"),
        (only(WHOLE, b"GGUF\3\0\0\0"), "model.safetensors: it is a GGUF file; load it"),
        (only(WHOLE, b"\x80\x02}q\0."), "model.safetensors: it is a pickle, as torch.save wrote"),
        (only(WHOLE, b"PK\3\4rest"), "model.safetensors: it is an archive, as torch.save writes"),
        (only("a.safetensors"), "a.safetensors is not a complete safetensors file"),
    ],
)
def test_what_is_no_folder_of_weights(
    build: Path, sharded: Path, change: Callable[[Path], None], message: str
) -> None:
    change(sharded)
    trainer = opened(build)
    before = trainer.state_dict()
    with pytest.raises(InvalidInputError, match=message):
        opened(build, weights=sharded)
    with pytest.raises(InvalidInputError, match=message):
        trainer.load_weights(sharded)
    assert_same(trainer.state_dict(), before)


def header(text: str, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text.encode()


def tensor(**changes: object) -> str:
    return json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        header("{}", 1 << 60),
        header("{}", (1 << 64) - 1),
        header(tensor(), 1 << 27),
        header('{"w": NaN}'),
        header(tensor(shape=[float("nan")])) + bytes(8),
        header(tensor(shape=[-2])) + bytes(8),
        header(tensor(shape=[2**62, 2**62])) + bytes(8),
        header(tensor(shape=[2**40]), None) + bytes(8),
        header(tensor(data_offsets=[0, 2**62])) + bytes(8),
        header(tensor(data_offsets=[8, 0])) + bytes(8),
        header(tensor(data_offsets=[0, 16])) + bytes(8),
        header(tensor(dtype="F12")) + bytes(8),
        header(tensor(dtype="F4", shape=[16])) + bytes(8),
        header(
            '{"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},'
            ' "b": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]}}'
        )
        + bytes(12),
        header(
            '{"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},'
            ' "a": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]}}'
        )
        + bytes(12),
        header("[" * 5000),
        header(json.dumps({"w": [[]] * 3})),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"w\.safetensors"):
        WeightFile(tmp_path / "w.safetensors")


def test_what_is_no_file_is_refused_without_opening_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", "/dev/null"):
        with pytest.raises(InvalidInputError, match="it is a pipe or a device; give a file"):
            WeightFile(path)
    with pytest.raises(InvalidInputError, match="No such file or directory"):
        WeightFile(tmp_path / "nowhere")
    with pytest.raises(InvalidInputError, match="can't read weights from a"):
        WeightFile("a\0b")


def test_a_sparse_file_is_no_weights(tmp_path: Path) -> None:
    with (tmp_path / "w.safetensors").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(InvalidInputError, match="not a complete safetensors file"):
        WeightFile(tmp_path / "w.safetensors")


def test_names_of_another_model(tmp_path: Path, build: Path) -> None:
    for prefix, hint in (("model.", "its names have 'model.' too much"), ("", "did you mean")):
        others = {f"{prefix}{name}": value for name, value in weights().items()}
        others = others if prefix else {f"{name}s": value for name, value in others.items()}
        save_file(others, tmp_path / "others.safetensors")
        for use in (opened(build).load_weights, lambda path: opened(build, weights=path)):
            with pytest.raises(
                InvalidInputError, match=rf"has none of the program's weights but .*{hint}"
            ):
                use(tmp_path / "others.safetensors")


def test_names_that_lack_a_prefix(tmp_path: Path, build: Path) -> None:
    save_file({"weight": torch.ones(1), "bias": torch.ones(5)}, tmp_path / "w.safetensors")
    with pytest.raises(InvalidInputError, match=r"its names lack '(up|down)\.' at their start"):
        opened(build, weights=tmp_path / "w.safetensors")


def test_tensors_that_are_not_used_are_told(tmp_path: Path, build: Path) -> None:
    save_file({**weights(), "head.weight": torch.ones(1)}, tmp_path / "w.safetensors")
    for use in (opened(build).load_weights, lambda path: opened(build, weights=path)):
        with pytest.warns(UserWarning, match=r"that the program doesn't have.*'head\.weight'"):
            use(tmp_path / "w.safetensors")


def as_dtype(dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) for name, tensor in weights().items()}


def test_floats_of_another_width_are_converted_as_transformers_does(
    tmp_path: Path, build: Path
) -> None:
    path = tmp_path / "w.safetensors"
    for dtype in (torch.bfloat16, torch.float16):
        save_file(as_dtype(dtype), path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = opened(build, weights=path).state_dict()
        assert_same(found, {name: each.float() for name, each in as_dtype(dtype).items()})
    save_file(as_dtype(torch.float64), path)
    with pytest.warns(UserWarning, match="float64 in the file and rounded to float32"):
        assert_same(opened(build, weights=path).state_dict(), weights())


@pytest.mark.filterwarnings("ignore:weights are float64 in the file")
def test_numbers_that_do_not_fit_are_refused(tmp_path: Path, build: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(
        {**as_dtype(torch.float64), "down.bias": torch.full((5,), 1e300, dtype=torch.float64)}, path
    )
    trainer = opened(build)
    before = trainer.state_dict()
    with pytest.raises(InvalidInputError, match=r"'down\.bias' in .* too large for float32"):
        trainer.load_weights(path)
    assert_same(trainer.state_dict(), before)
    save_file({**weights(), "down.bias": torch.ones(5, dtype=torch.int64)}, path)
    with pytest.raises(InvalidInputError, match=r"is int64\[5\], the program expects float32\[5\]"):
        trainer.load_weights(path)


def test_a_model_that_does_not_fit_changes_nothing(tmp_path: Path, build: Path) -> None:
    save_file({**weights(), "up.weight": torch.ones(3, 3)}, tmp_path / "w.safetensors")
    trainer = opened(build)
    before = trainer.state_dict()
    with pytest.raises(InvalidInputError, match=r"float32\[3, 3\], the program expects"):
        trainer.load_weights(tmp_path / "w.safetensors")
    assert_same(trainer.state_dict(), before)
