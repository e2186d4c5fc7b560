"""Writes the files of a checkpoint, in the layout of `torch.distributed.checkpoint`.

    __RANK_0.distcp   what a process writes: a file of torch.save for each piece, one behind another
    .metadata         where DCP finds what; written for DCP's sake, never read here
    index.jsonl       where we find it, with digests; see `checkpoint_index`

Processes tell one another nothing but whether they are done: what each wrote, it leaves in a file
in the folder, of which the first process makes the index.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from autopar.base.errors import RuntimeFailure
from autopar.runtime.checkpoint.index import (
    INDEX,
    MARK,
    Index,
    Slice,
    StoredPiece,
    StoredTensor,
    check_pieces,
    parse_piece,
    piece_line,
    write_index,
)
from autopar.runtime.checkpoint.torch_file import elements_of
from autopar.runtime.files.digest import CACHED_BYTES, growing_digest
from autopar.runtime.kernels.table import IR_DTYPES, TORCH_DTYPES
from autopar.runtime.ports.regions import Region
from autopar.runtime.state.state import Content, Key, flat_key

_MARK: Key = tuple(MARK.split("."))


@dataclass(frozen=True)
class Rectangle:
    """A part of a tensor that this process writes.

    Attributes:
        tensor: Which of the content's tensors.
        region: Where it is in the whole one.
        elements: Its elements.
    """

    tensor: int
    region: Region
    elements: Tensor


def rectangles_of(content: Content) -> list[Rectangle]:
    """Returns what a process writes, each rectangle once."""
    found: dict[tuple[int, tuple[int, ...]], Rectangle] = {}
    for number, held in enumerate(content.tensors):
        for piece in held.pieces:
            for region in piece.regions():
                part = Rectangle(number, region, region.of(piece.tensor.detach()))
                found.setdefault((number, region.offsets), part)
    return list(found.values())


def copied(rectangles: Iterable[Rectangle]) -> list[Rectangle]:
    """Returns the rectangles with their elements as they are now, in main memory of their own."""
    return [
        Rectangle(each.tensor, each.region, each.elements.to("cpu", copy=True).contiguous())
        for each in rectangles
    ]


def write_rectangles(folder: Path, rank: int, rectangles: Iterable[Rectangle]) -> None:
    """Writes what a process writes, and where it is, and waits until it is on the disk.

    Raises:
        OSError: If that fails.
    """
    name = f"__{rank}_0.distcp"
    with (folder / name).open("w+b") as file:
        lines = [
            json.dumps([each.tensor, piece_line(_written(file, name, each))]) for each in rectangles
        ]
        file.flush()
        os.fsync(file.fileno())
    _words_of(folder, rank).write_text("\n".join(lines))


def finish(folder: Path, content: Content, size: int, number: int) -> None:
    """Writes the plain values, the index and `.metadata`, of what all processes wrote.

    Args:
        folder: Where they wrote it.
        content: What the checkpoint holds.
        size: Number of processes.
        number: Counts the checkpoints of a series.

    Raises:
        OSError: If that fails.
        RuntimeFailure: If the processes together didn't write each tensor once.
    """
    pieces: list[list[StoredPiece]] = [[] for _ in content.tensors]
    for rank in range(size):
        words = _words_of(folder, rank)
        for line in words.read_text().splitlines():
            tensor, piece = json.loads(line)
            pieces[tensor].append(parse_piece(piece))
        words.unlink()
    tensors = {}
    for held, found in zip(content.tensors, pieces, strict=True):
        stored = StoredTensor(IR_DTYPES[held.dtype], held.shape, found)
        _check_complete(flat_key(held.keys[0]), stored)
        tensors.update({flat_key(key): stored for key in held.keys})
    places = _write_values(folder, {**content.values, _MARK: INDEX})
    values = {flat_key(key): value for key, value in content.values.items()}
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    names = [[flat_key(key) for key in held.keys] for held in content.tensors]
    write_index(folder / INDEX, Index(tensors, values, files, number), names)
    _write_metadata(folder, content, tensors, places)


def _check_complete(name: str, tensor: StoredTensor) -> None:
    try:
        check_pieces(tensor)
    except ValueError as error:
        raise RuntimeFailure(f"the ranks didn't write all of {name}: {error}") from error


def _words_of(folder: Path, rank: int) -> Path:
    """Returns the file in which a process says what it wrote."""
    return folder / f"__{rank}.pieces"


def _written(file: IO[bytes], name: str, part: Rectangle) -> StoredPiece:
    begin = file.tell()
    digesting = _Digesting(file)
    digesting.save(_alone(part.elements))
    file.flush()
    length = file.tell() - begin
    start = elements_of(file, begin)
    file.seek(begin + length)
    place = Slice(name, begin, length, digesting.digest.hexdigest())
    return StoredPiece(place, part.region.offsets, part.region.sizes, start)


def _alone(tensor: Tensor) -> Tensor:
    """Returns a tensor row by row, in memory that holds nothing else: all of it is saved."""
    dense = tensor.cpu().contiguous()
    return dense if dense.untyped_storage().nbytes() == dense.nbytes else dense.clone()


class _Digesting(io.RawIOBase):
    """Writes to a file, and digests what is written.

    Args:
        file: The file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.digest = growing_digest()
        self._file = file
        self._failed: OSError | None = None

    def writable(self) -> bool:
        """Says that it is."""
        return True

    def write(self, content: Any) -> int:
        """Writes bytes."""
        try:
            for at in range(0, len(content), CACHED_BYTES):
                block = content[at : at + CACHED_BYTES]
                self.digest.update(block)
                self._file.write(block)
            return len(content)
        except OSError as error:
            # torch raises something else of it.
            self._failed = error
            raise

    def save(self, value: Any) -> None:
        """Writes a value as `torch.save` does.

        Raises:
            OSError: If the file can't be written.
        """
        try:
            torch.save(value, cast("IO[bytes]", self))
        except Exception as error:
            if self._failed is None:
                raise
            raise self._failed from error


def _write_values(folder: Path, values: Mapping[Key, Any]) -> dict[Key, Slice]:
    """Writes plain values for DCP, and returns where they are."""
    name = "__values.distcp"
    places = {}
    with (folder / name).open("wb") as file:
        for key, value in values.items():
            begin = file.tell()
            _Digesting(file).save(value)
            places[key] = Slice(name, begin, file.tell() - begin)
        file.flush()
        os.fsync(file.fileno())
    return places


def _write_metadata(
    folder: Path,
    content: Content,
    tensors: Mapping[str, StoredTensor],
    values: Mapping[Key, Slice],
) -> None:
    entries: dict[str, Any] = {flat_key(key): BytesStorageMetadata() for key in values}
    results = [_result(MetadataIndex(flat_key(key)), place) for key, place in values.items()]
    for name, tensor in tensors.items():
        entries[name] = _entry(tensor)
        results += [
            _result(MetadataIndex(name, torch.Size(piece.at)), piece.slice)
            for piece in tensor.pieces
        ]
    keys = [*values, *(key for held in content.tensors for key in held.keys)]
    metadata = Metadata(entries, {flat_key(key): key for key in keys})
    FileSystemWriter(folder).finish(metadata, [results])


def _entry(tensor: StoredTensor) -> TensorStorageMetadata:
    chunks = [
        ChunkStorageMetadata(torch.Size(piece.at), torch.Size(piece.sizes))
        for piece in tensor.pieces
    ]
    properties = TensorProperties(dtype=TORCH_DTYPES[tensor.dtype])
    return TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)


def _result(index: MetadataIndex, place: Slice) -> WriteResult:
    info = _StorageInfo(place.file, place.offset, place.length)
    return WriteResult(index, place.length, info)


def nbytes(rectangles: Sequence[Rectangle]) -> int:
    """Returns the bytes of the elements of rectangles."""
    return sum(each.elements.nbytes for each in rectangles)
