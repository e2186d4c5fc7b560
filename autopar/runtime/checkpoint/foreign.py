"""Checkpoints that `torch.distributed.checkpoint` wrote, or autopar before it had an index.

Their `.metadata` is a pickle. It is read without running anything, and only the classes of DCP may
occur in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopar.runtime.checkpoint.index import (
    INDEX,
    MARK,
    DamagedCheckpoint,
    Index,
    Slice,
    StoredPiece,
    StoredTensor,
    check_pieces,
    plain_name,
    read_whole,
)
from autopar.runtime.checkpoint.inert_pickle import Inert, NotInert, read_inert
from autopar.runtime.kernels.table import IR_DTYPES

METADATA = ".metadata"

_DTYPES = {str(dtype): name for dtype, name in IR_DTYPES.items()}
_DCP = "torch.distributed.checkpoint"
_OF_METADATA = (
    "Metadata",
    "TensorStorageMetadata",
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "TensorProperties",
    "MetadataIndex",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
)
_ALLOWED = {
    *(f"{_DCP}.metadata.{name}" for name in _OF_METADATA),
    f"{_DCP}.filesystem._StorageInfo",
    "torch.Size",
    "torch.serialization._get_layout",
    "collections.OrderedDict",
    # Where the checkpoint was written, which isn't looked at.
    *(f"{module}.{kind}Path" for module in ("pathlib", "pathlib._local") for kind in ("Posix", "")),
    *(f"{module}.WindowsPath" for module in ("pathlib", "pathlib._local")),
    *_DTYPES,
}


def read_metadata(folder: Path) -> Index:
    """Returns what the `.metadata` of a checkpoint says.

    Raises:
        DamagedCheckpoint: If it isn't what DCP writes, or was beside an index.
    """
    index = _parsed(folder)
    if MARK in index.values:
        raise DamagedCheckpoint(
            f"{folder / INDEX} is missing, which says what the checkpoint holds; go on from another"
        )
    return index


def metadata_damage(folder: Path, index: Index) -> str:
    """Returns how the `.metadata` beside an index is damaged; an empty text if it isn't.

    Args:
        folder: The checkpoint.
        index: What its index says.
    """
    path = folder / METADATA
    if not path.is_file():
        return f"{path} is missing, so that plain PyTorch can't read the checkpoint"
    try:
        told = _parsed(folder)
    except DamagedCheckpoint as error:
        return str(error)
    names = [*dict.fromkeys((*index.tensors, *told.tensors))]
    for name in names:
        if _outline(told.tensors.get(name)) != _outline(index.tensors.get(name)):
            return f"{path} isn't what was saved: {name!r} is not what {INDEX} says"
    if others := sorted((told.values.keys() ^ index.values.keys()) - {MARK}):
        return f"{path} isn't what was saved: {others[0]!r} is not what {INDEX} says"
    return ""


def _outline(tensor: StoredTensor | None) -> object:
    """Returns what both say of a tensor: its type, and where its pieces are."""
    if tensor is None:
        return None
    pieces = {(each.slice[:3], each.at, each.sizes) for each in tensor.pieces}
    return tensor.dtype, tensor.shape, pieces


def _parsed(folder: Path) -> Index:
    path = folder / METADATA
    content = read_whole(path)
    try:
        return _index(read_inert(content, _ALLOWED), len(content))
    except NotInert as error:
        raise DamagedCheckpoint(f"{path} can't be read as a checkpoint's: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DamagedCheckpoint(
            f"{path} is damaged, or not what torch.distributed.checkpoint writes: {error}"
        ) from error


def _index(metadata: Inert, length: int) -> Index:
    state = _state(metadata, "Metadata")
    places = {_key(index): info for index, info in state["storage_data"].items()}
    tensors: dict[str, StoredTensor] = {}
    values: dict[str, Slice] = {}
    pieces = 0
    for name, entry in state["state_dict_metadata"].items():
        if not isinstance(name, str):
            raise TypeError("a name is no text")
        if isinstance(entry, Inert) and entry.name.endswith(".BytesStorageMetadata"):
            values[name] = _slice(places[name, None])
            continue
        # Each of them takes some bytes in an honest pickle.
        pieces += len(_state(entry, "TensorStorageMetadata")["chunks"])
        if pieces > length:
            raise ValueError("there are more pieces than bytes")
        tensor = _tensor(name, entry, places)
        check_pieces(tensor)
        tensors[name] = tensor
    return Index(tensors, values)


def _tensor(name: str, entry: Inert, places: Mapping[Any, Inert]) -> StoredTensor:
    state = _state(entry, "TensorStorageMetadata")
    dtype = _dtype(state["properties"])
    chunks = [_state(chunk, "ChunkStorageMetadata") for chunk in state["chunks"]]
    found = [(_size(chunk["offsets"]), _size(chunk["sizes"])) for chunk in chunks]
    pieces = [StoredPiece(_slice(places[name, at]), at, sizes) for at, sizes in found]
    return StoredTensor(dtype, _size(state["size"]), pieces)


def _dtype(properties: Inert) -> str:
    state = properties.state
    # Since torch 2.0 a tuple, of which this is the first.
    dtype = state[0] if isinstance(state, tuple) else state["dtype"]
    return _DTYPES[dtype.name]


def _key(index: Inert) -> tuple[str, tuple[int, ...] | None]:
    state = _state(index, "MetadataIndex")
    offset = state.get("offset")
    return str(state["fqn"]), None if offset is None else _size(offset)


def _slice(info: Inert) -> Slice:
    state = _state(info, "_StorageInfo")
    if state.get("transform_descriptors"):
        raise ValueError("it was written with an extension; save it again without")
    offset, length = _size_of([state["offset"], state["length"]])
    return Slice(plain_name(state["relative_path"]), offset, length)


def _state(record: Any, kind: str) -> dict[str, Any]:
    if not isinstance(record, Inert) or not record.name.endswith(f".{kind}"):
        raise TypeError(f"there is no {kind} where one is expected")
    if not isinstance(record.state, dict):
        raise TypeError(f"a {kind} is empty")
    return record.state


def _size(record: Any) -> tuple[int, ...]:
    """Returns the numbers of a `torch.Size`."""
    if not isinstance(record, Inert) or record.name != "torch.Size" or len(record.made_of) > 1:
        raise TypeError("there is no torch.Size where one is expected")
    return _size_of(*record.made_of or ((),))


def _size_of(numbers: Any) -> tuple[int, ...]:
    if not isinstance(numbers, (tuple, list)):
        raise TypeError("sizes are no numbers")
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a size is no count")
    return tuple(numbers)
