"""The index of a checkpoint: what it holds, where, and with which digests.

    {"format": "autopar checkpoint", "version": 1, "number": 12, "digest": "of all that follows"}
    {"values": {"trainer.steps": 300, ...}, "files": {"__0_0.distcp": 51234, ...}}
    {"names": ["model.up.weight"], "dtype": "f32", "shape": [8, 4], "pieces": [{...}, ...]}
    ...

It is JSON, so that reading it runs nothing; it is what counts in a checkpoint of autopar. The
`.metadata` beside it, a pickle, is written for `torch.distributed.checkpoint` alone.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from autopar.base.errors import InvalidInputError, os_reason
from autopar.runtime.files.digest import growing_digest
from autopar.runtime.kernels.table import IR_DTYPES, TORCH_DTYPES

INDEX = "index.jsonl"
MARK = "trainer.index"
"""An entry that says in `.metadata` that there is an index, so that a lost one is noticed."""

FORMAT = "autopar checkpoint"
VERSION = 1

LARGEST_INDEX = 1 << 30
"""Bytes; what is larger isn't read into memory."""

_LONGEST_HEADER = 4096


class DamagedCheckpoint(InvalidInputError):
    """A checkpoint isn't what was saved: a file is missing, cut off, damaged or of another one."""


class Slice(NamedTuple):
    """Some bytes of a file.

    Attributes:
        file: Name of the file, in the checkpoint's folder.
        offset: Where they begin.
        length: How many they are.
        digest: Their digest, in hexadecimal digits; "" if it isn't known.
    """

    file: str
    offset: int
    length: int
    digest: str = ""


class StoredPiece(NamedTuple):
    """A rectangle of a tensor as a file that `torch.save` made, within a larger file.

    Attributes:
        slice: Where it is.
        at: Where the rectangle begins in the whole tensor, per dimension.
        sizes: Its shape.
        start: Bytes before its elements, which follow row by row; None if only the file says that.
    """

    slice: Slice
    at: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int | None = None


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint.

    Attributes:
        dtype: A name of the IR.
        shape: Its shape.
        pieces: The rectangles that make it up.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: Sequence[StoredPiece]


@dataclass(frozen=True)
class Index:
    """What a checkpoint holds.

    Attributes:
        tensors: By all their names.
        values: Plain values by name; a `Slice` where they are in a file that `torch.save` made.
        files: How many bytes files have, where that is known.
        number: Counts the checkpoints of a series.
    """

    tensors: Mapping[str, StoredTensor]
    values: Mapping[str, Any]
    files: Mapping[str, int] = field(default_factory=dict)
    number: int = 0


def write_index(path: Path, index: Index, names: Iterable[Sequence[str]]) -> None:
    """Writes an index, and waits until it is on the disk.

    Args:
        path: The file.
        index: What it says.
        names: The names of each tensor.
    """
    lines = [{"values": dict(index.values), "files": dict(index.files)}]
    lines += [_tensor_line(each, index.tensors[each[0]]) for each in names]
    body = "".join(_line(line) for line in lines).encode()
    digest = growing_digest()
    digest.update(body)
    header = {"format": FORMAT, "version": VERSION, "number": index.number}
    with path.open("wb") as file:
        file.write(_line({**header, "digest": digest.hexdigest()}).encode())
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def read_index(folder: Path) -> Index:
    """Returns the index of a checkpoint of autopar.

    Raises:
        DamagedCheckpoint: If it isn't what was written.
        InvalidInputError: If a later version of autopar wrote it, or it can't be read.
    """
    path = folder / INDEX
    content = read_whole(path)
    first, _, body = content.partition(b"\n")
    header = _header(path, first)
    digest = growing_digest()
    digest.update(body)
    if digest.hexdigest() != header["digest"]:
        raise _damaged(path)
    try:
        # One line at a time: there may be hundreds of thousands of pieces.
        return _index(header["number"], map(json.loads, body.splitlines()))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path) from error


def number_of(folder: Path) -> int:
    """Returns which checkpoint of a series this is; 0 if nothing says so.

    Raises:
        DamagedCheckpoint: If the index begins with something else than one does.
    """
    path = folder / INDEX
    if not path.is_file():
        return 0
    try:
        with path.open("rb") as file:
            first = file.readline(_LONGEST_HEADER)
    except OSError as error:
        raise DamagedCheckpoint(f"can't read {path}: {os_reason(error)}") from error
    return int(_header(path, first)["number"])


def read_whole(path: Path) -> bytes:
    """Returns what an index or a `.metadata` holds.

    Raises:
        DamagedCheckpoint: If it can't be read, or isn't of a size that can be.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_INDEX:
            raise DamagedCheckpoint(
                f"{path} says what the checkpoint holds and can't be: it is"
                f" {found.st_size:,} bytes long"
            )
        return path.read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(f"can't read {path}: {os_reason(error)}") from error


def piece_line(piece: StoredPiece) -> dict[str, Any]:
    """Returns what the index says of a piece."""
    return {
        "file": piece.slice.file,
        "offset": piece.slice.offset,
        "length": piece.slice.length,
        "digest": piece.slice.digest,
        "at": piece.at,
        "sizes": piece.sizes,
        "start": piece.start,
    }


def parse_piece(line: Mapping[str, Any]) -> StoredPiece:
    """Returns what `piece_line` wrote.

    Raises:
        LookupError, TypeError, ValueError: If it is something else.
    """
    place = Slice(
        plain_name(line["file"]), _count(line["offset"]), _count(line["length"]), line["digest"]
    )
    return StoredPiece(place, _counts(line["at"]), _counts(line["sizes"]), _count(line["start"]))


def check_pieces(tensor: StoredTensor) -> None:
    """Refuses pieces that aren't a tensor's, or aren't all of it.

    Raises:
        ValueError: If they can't be.
    """
    itemsize = TORCH_DTYPES[tensor.dtype].itemsize
    elements = 0
    for place, starts, sizes, start in tensor.pieces:
        for at, size, whole in zip(starts, sizes, tensor.shape, strict=True):
            if at + size > whole:
                raise ValueError("a piece is outside of its tensor")
        count = math.prod(sizes)
        elements += count
        if start is not None and start + count * itemsize > place.length:
            raise ValueError("a piece has more elements than bytes")
    if elements < math.prod(tensor.shape):
        raise ValueError("pieces are missing")


def plain_name(name: Any) -> str:
    """Returns the name of a file in the folder itself.

    Raises:
        ValueError: If it is another path.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a file in the folder")
    return name


def _index(number: int, lines: Iterator[Any]) -> Index:
    head: Any = next(lines, {})
    tensors: dict[str, StoredTensor] = {}
    for line in lines:
        pieces = tuple(map(parse_piece, line["pieces"]))
        IR_DTYPES[TORCH_DTYPES[line["dtype"]]]
        tensor = StoredTensor(line["dtype"], _counts(line["shape"]), pieces)
        check_pieces(tensor)
        tensors.update(dict.fromkeys(line["names"], tensor))
    files = {plain_name(name): _count(size) for name, size in head["files"].items()}
    return Index(tensors, dict(head["values"]), files, number)


def _header(path: Path, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
        if found["format"] != FORMAT or not isinstance(found["version"], int):
            raise ValueError("another format")
        if found["version"] > VERSION:
            raise InvalidInputError(
                f"{path}: a later version of autopar wrote this checkpoint; read it with that"
            )
        return {"number": _count(found["number"]), "digest": str(found["digest"])}
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> DamagedCheckpoint:
    return DamagedCheckpoint(
        f"{path} is damaged: it isn't what was saved; go on from another checkpoint"
    )


def _tensor_line(names: Sequence[str], tensor: StoredTensor) -> dict[str, Any]:
    return {
        "names": list(names),
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "pieces": [piece_line(piece) for piece in tensor.pieces],
    }


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":")) + "\n"


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is no count")
    return number


def _counts(numbers: Any) -> tuple[int, ...]:
    found = tuple(numbers)
    if found and (min(found) < 0 or set(map(type, found)) != {int}):
        raise ValueError(f"{found!r} are no counts")
    return found
