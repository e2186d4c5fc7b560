"""Checkpoints of strangers: nothing of them runs, and no memory is spent on what they claim."""

from __future__ import annotations

import builtins
import io
import json
import operator
import os
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict import get_state_dict

from autopar.base.errors import InvalidInputError
from autopar.runtime.checkpoint.index import DamagedCheckpoint, growing_digest
from autopar.runtime.checkpoint.inert_pickle import NotInert, read_inert
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from tests.runtime.training.steps import LAYOUTS, Reference, training_build

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

DATA, INDEX, METADATA = "__0_0.distcp", "index.jsonl", ".metadata"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    build = training_build(tmp_path_factory.mktemp("build") / "b", LAYOUTS[0])
    return open_trainer(build, virtual=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, optimizer = get_state_dict((one := Reference.of_seed()).model, one.optimizer)
    state = {"model": model, "optimizer": optimizer, "trainer": {"steps": 3}}
    dcp.save(state, checkpoint_id=tmp_path / "c", no_dist=True)
    return tmp_path / "c"


class Calling:
    """Is pickled as a call."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def attacks(mark: Path) -> dict[str, Any]:
    """Returns what would make a file if it were unpickled by Python."""
    touch = f"touch {mark}"
    nothing = torch.Size(())
    properties = TensorProperties()
    properties.dtype = Calling(os.system, touch)  # type: ignore[assignment]
    nested = Metadata({"model.up.weight": Calling(os.system, touch)}, None, {})  # type: ignore[dict-item]
    index = MetadataIndex("x")
    object.__setattr__(index, "fqn", Calling(os.system, touch))
    chunk = ChunkStorageMetadata(Calling(os.system, touch), torch.Size(()))  # type: ignore[arg-type]
    return {
        "at the top": Calling(os.system, touch),
        "nested": nested,
        "in a state": Metadata({"a": TensorStorageMetadata(properties, nothing, [])}, None, {}),
        "in a key": Metadata({}, None, {index: 1}),
        "in a chunk": Metadata(
            {"a": TensorStorageMetadata(TensorProperties(), torch.Size(), [chunk])}, None, {}
        ),
        "in planner_data": Metadata({}, Calling(os.system, touch), {}),
        "in storage_meta": Metadata({}, None, {}, Calling(os.system, touch)),  # type: ignore[arg-type]
        "getattr": Calling(getattr, os, "system"),
        "eval": Calling(eval, f"__import__('os').system({touch!r})"),
        "exec": Calling(builtins.exec, f"import os; os.system({touch!r})"),
        "open": Calling(open, str(mark), "w"),
        "attrgetter": Calling(operator.attrgetter("system"), os),
        "torch.load": Calling(torch.load, str(mark)),
        "a function of torch": Calling(torch.hub.load, "owner/name"),
    }


@pytest.mark.parametrize("name", attacks(Path("mark")))
def test_metadata_runs_nothing(folder: Path, tmp_path: Path, trainer: Trainer, name: str) -> None:
    mark = tmp_path / "mark"
    (folder / METADATA).write_bytes(pickled(attacks(mark)[name]))
    with pytest.raises(DamagedCheckpoint, match=r"asks for .*, which isn't read: that could run"):
        trainer.load_checkpoint(folder)
    assert not mark.exists()


def pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except (TypeError, pickle.PicklingError):
        # A module in the arguments; as a pickle by hand would name it.
        return b"cbuiltins\ngetattr\n(cos\nsystem\nVx\ntR."


def test_the_attacks_do_work_on_plain_pickle(tmp_path: Path) -> None:
    for name in ("at the top", "nested", "in a state", "in a key", "in a chunk"):
        mark = tmp_path / name.replace(" ", "-")
        pickle.loads(pickled(attacks(mark)[name]))
        assert mark.exists()


@pytest.mark.parametrize(
    "attack",
    [
        # BUILD with attributes: on a class, on a function, on an object.
        b"ctorch.distributed.checkpoint.metadata\nMetadata\n(N}Vx\nI1\nst\x86b.",
        b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81"
        b"}X\x09\x00\x00\x00__class__cos\nsystem\nsb.",
        # INST and OBJ call too, and the registry of extensions names functions.
        b"(Vtouch x\nios\nsystem\n.",
        b"(cos\nsystem\nVtouch x\no.",
        b"\x80\x02\x82\x01.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x07touch x\x85R.",
        # A name with dots is walked through attributes.
        b"\x80\x04\x8c\x05torch\x8c\x0dSize.__init__\x93.",
    ],
)
def test_opcodes_by_hand_run_nothing(folder: Path, trainer: Trainer, attack: bytes) -> None:
    before = {key: value for key, value in vars(Metadata).items() if key != "__doc__"}
    (folder / METADATA).write_bytes(attack)
    with pytest.raises(DamagedCheckpoint, match=METADATA):
        trainer.load_checkpoint(folder)
    assert before == {key: value for key, value in vars(Metadata).items() if key != "__doc__"}
    assert not Path("x").exists()


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",  # bytes that aren't there
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",  # a text that isn't there
        b"\x80\x04N" + b"r" + struct.pack("<I", (1 << 32) - 1) + b".",  # a memo of that size
        b"\x80\x04N" + b"p4294967295\n.",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
    ],
)
def test_declared_sizes_take_no_memory(bomb: bytes) -> None:
    with pytest.raises(NotInert):
        read_inert(bomb, ())


def test_many_pieces_in_few_bytes_are_refused(folder: Path, trainer: Trainer) -> None:
    """A pickle of some KiB that names one list of pieces for each of its tensors."""
    chunks = [ChunkStorageMetadata(torch.Size((0,)), torch.Size((1,)))] * 800
    entry = TensorStorageMetadata(TensorProperties(), torch.Size((1,)), chunks)
    index = MetadataIndex("a", (0,))
    info = pickle.loads((folder / METADATA).read_bytes()).storage_data
    names = {f"{at}": entry for at in range(800)}
    places = {MetadataIndex(name, (0,)): next(iter(info.values())) for name in names}
    data = pickle.dumps(Metadata(names, None, {index: next(iter(info.values())), **places}))  # type: ignore[arg-type]
    (folder / METADATA).write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match="more pieces than bytes"):
        trainer.load_checkpoint(folder)


def rewritten(folder: Path, name: str, pickled: bytes) -> None:
    """Puts another pickle into the file of torch.save that holds an entry."""
    metadata = pickle.loads((folder / METADATA).read_bytes())
    info = next(info for index, info in metadata.storage_data.items() if index.fqn == name)
    content = (folder / DATA).read_bytes()
    old = zipfile.ZipFile(io.BytesIO(content[info.offset : info.offset + info.length]))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as new:
        for entry in old.infolist():
            is_pickle = entry.filename.endswith("data.pkl")
            new.writestr(entry.filename, pickled if is_pickle else old.read(entry))
    info.offset, info.length = len(content), stream.tell()
    (folder / DATA).write_bytes(content + stream.getvalue())
    (folder / METADATA).write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("name", ["model.up.weight", "trainer.steps"])
def test_tensors_and_values_run_nothing(
    folder: Path, tmp_path: Path, trainer: Trainer, name: str
) -> None:
    attack = pickle.dumps(Calling(os.system, f"touch {tmp_path / 'mark'}"))
    rewritten(folder, name, attack)
    with pytest.raises(DamagedCheckpoint, match=rf"'{name}'.*asks for posix.system"):
        trainer.load_checkpoint(folder)
    assert not (tmp_path / "mark").exists()


def tensor_pickle(size: list[int], stride: list[int]) -> bytes:
    """Returns the pickle of a tensor of 32 elements of which it claims other sizes."""
    found = io.BytesIO()
    torch.save(torch.zeros(8, 4), found)
    data = zipfile.ZipFile(found).read("archive/data.pkl")
    text = pickletools.genops(data)
    places = [at for op, argument, at in text if op.name == "BININT1" and argument in (8, 4, 1)]
    content = bytearray(data)
    for at, number in zip(places[-4:], [*size, *stride], strict=True):
        content[at + 1] = number
    return bytes(content)


@pytest.mark.parametrize("claim", [([8, 4], [4, 2]), ([8, 4], [200, 1]), ([16, 4], [4, 1])])
def test_tensors_stay_within_their_memory(
    folder: Path, trainer: Trainer, claim: tuple[list[int], list[int]]
) -> None:
    rewritten(folder, "model.up.weight", tensor_pickle(*claim))
    with pytest.raises(DamagedCheckpoint, match=r"'model.up.weight' in .* can't be read"):
        trainer.load_checkpoint(folder)


def forged(folder: Path, change: Callable[[list[Any]], None]) -> None:
    """Changes an index of ours, with a digest that fits."""
    first, *rest = (folder / INDEX).read_text().splitlines()
    lines = [json.loads(line) for line in rest]
    change(lines)
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    digest = growing_digest()
    digest.update(body)
    header = json.dumps({**json.loads(first), "digest": digest.hexdigest()}) + "\n"
    (folder / INDEX).write_bytes(header.encode() + body)


def piece(lines: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = lines[1]["pieces"][0]
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: piece(lines).update(file="../other"),
        lambda lines: piece(lines).update(file="/etc/passwd"),
        lambda lines: piece(lines).update(offset=-1),
        lambda lines: piece(lines).update(length=1 << 62),
        lambda lines: piece(lines).update(offset=1 << 62),
        lambda lines: piece(lines).update(start=1 << 40),
        lambda lines: piece(lines).update(sizes=[1 << 40, 4]),
        lambda lines: piece(lines).update(at=[4, 0]),
        lambda lines: lines[1].update(shape=[1 << 40, 1 << 40]),
        lambda lines: lines[1].update(dtype="f7"),
        lambda lines: lines[1].update(pieces=[]),
        lambda lines: lines[1].update(names=7),
        lambda lines: lines[0].update(files={"__0_0.distcp": "many"}),
        lambda lines: lines.clear(),
    ],
)
def test_a_forged_index_reaches_nothing_else(
    tmp_path: Path, trainer: Trainer, change: Callable[[list[Any]], None]
) -> None:
    other = open_trainer(trainer_build(tmp_path), virtual=True)
    other.save_checkpoint(tmp_path / "c")
    forged(tmp_path / "c", change)
    with pytest.raises(InvalidInputError):
        trainer.load_checkpoint(tmp_path / "c")


def trainer_build(folder: Path) -> Path:
    return training_build(folder / "b", LAYOUTS[0])


def test_pipes_and_endless_files_are_not_read(folder: Path, trainer: Trainer) -> None:
    (folder / DATA).unlink()
    os.mkfifo(folder / DATA)
    with pytest.raises(DamagedCheckpoint, match="is no file"):
        trainer.load_checkpoint(folder)
    with (folder / METADATA).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(DamagedCheckpoint, match="1,099,511,627,776 bytes"):
        trainer.load_checkpoint(folder)


def test_a_deep_index_is_refused(folder: Path, trainer: Trainer) -> None:
    (folder / INDEX).write_bytes(b"[" * 100_000)
    with pytest.raises(DamagedCheckpoint, match="is damaged"):
        trainer.load_checkpoint(folder)
