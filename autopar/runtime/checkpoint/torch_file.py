"""Files that `torch.save` made, read where they lie in memory and without running anything.

Such a file is a zip archive, uncompressed, of a pickle and the raw elements of each tensor. Of the
pickle only the type and strides of the tensor are taken.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from autopar.runtime.checkpoint.inert_pickle import Inert, NotInert, read_inert
from autopar.runtime.kernels.table import IR_DTYPES

_LARGEST_PICKLE = 1 << 26
_LOCAL_HEADER = 30

_STORAGES: Mapping[str, torch.dtype] = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
    "torch.ComplexDoubleStorage": torch.complex128,
    "torch.ComplexFloatStorage": torch.complex64,
}
_DTYPES = {str(dtype): dtype for dtype in IR_DTYPES}
_UNTYPED = "torch.storage.UntypedStorage"
_REBUILD = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_ALLOWED = {*_STORAGES, *_DTYPES, _UNTYPED, *_REBUILD, "collections.OrderedDict"}


class Unreadable(Exception):
    """A file isn't one that `torch.save` made, or has something else in it. Says what."""


class Record(NamedTuple):
    """Where an entry of the archive lies in the file."""

    start: int
    length: int


def elements_of(file: IO[bytes], begin: int) -> int:
    """Returns how many bytes after `begin` the elements lie of a tensor that was saved there.

    Args:
        file: Ends with what `torch.save` wrote of one tensor from `begin` on.
        begin: Bytes before that.
    """
    (record,) = (found for name, found in _records(file).items() if name.endswith("/data/0"))
    return record.start - begin


def read_tensor(content: memoryview, sizes: Sequence[int]) -> Tensor:
    """Returns the tensor that a file of `torch.save` holds, in the file's memory.

    Raises:
        Unreadable: If it holds something else than a tensor of these sizes.
    """
    records, found = _opened(content)
    if not isinstance(found, Inert) or found.name not in _REBUILD:
        raise Unreadable("it holds no tensor")
    try:
        return _tensor(content, records, found, tuple(sizes))
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise Unreadable(f"it holds another tensor than the index says: {error}") from error


def read_value(content: memoryview) -> Any:
    """Returns the plain value that a file of `torch.save` holds.

    Raises:
        Unreadable: If it holds something else.
    """
    return _opened(content)[1]


def _opened(content: memoryview) -> tuple[dict[str, Record], Any]:
    """Returns where the archive's entries are, and what its pickle holds."""
    try:
        records = _records(io.BufferedReader(_View(content)))
        (pickled,) = (found for name, found in records.items() if name.endswith("/data.pkl"))
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, NotImplementedError) as error:
        raise Unreadable(f"it is no file of torch.save: {error}") from error
    start, length = pickled
    if length > min(_LARGEST_PICKLE, len(content) - start):
        raise Unreadable("it is no file of torch.save: its pickle is too large")
    try:
        return records, read_inert(bytes(content[start : start + length]), _ALLOWED)
    except NotInert as error:
        raise Unreadable(str(error)) from error


def _records(file: IO[bytes]) -> dict[str, Record]:
    found = {}
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError("it is compressed")
            file.seek(entry.header_offset)
            header = file.read(_LOCAL_HEADER)
            extra = int.from_bytes(header[26:28], "little") + int.from_bytes(
                header[28:30], "little"
            )
            start = entry.header_offset + _LOCAL_HEADER + extra
            found[entry.filename] = Record(start, entry.file_size)
    return found


def _tensor(
    content: memoryview, records: Mapping[str, Record], made: Inert, sizes: tuple[int, ...]
) -> Tensor:
    (_, kind, key, _, _), offset, size, stride, *rest = made.made_of
    dtype = _STORAGES[kind.name] if kind.name in _STORAGES else _DTYPES[rest[2].name]
    ((start, length),) = (at for name, at in records.items() if name.endswith(f"/data/{key}"))
    if tuple(size) != sizes or len(stride) != len(sizes) or min((offset, *stride)) < 0:
        raise ValueError(f"{list(size)} in place of {list(sizes)}")
    last = offset + sum((n - 1) * step for n, step in zip(sizes, stride, strict=True))
    if start + length > len(content) or (last + 1) * dtype.itemsize > length:
        raise ValueError("it is cut off")
    if 0 in sizes:
        return torch.empty(sizes, dtype=dtype)
    held = torch.frombuffer(content, dtype=dtype, count=length // dtype.itemsize, offset=start)
    return held.as_strided(sizes, tuple(stride), offset)


def elements_at(
    content: memoryview, start: int, dtype: torch.dtype, sizes: Sequence[int]
) -> Tensor:
    """Returns the tensor whose elements follow row by row from a place on, in that memory."""
    count = math.prod(sizes)
    return torch.frombuffer(content, dtype=dtype, count=count, offset=start).reshape(tuple(sizes))


class _View(io.RawIOBase):
    """Memory as a file."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0

    def readable(self) -> bool:
        """Says that it is."""
        return True

    def seekable(self) -> bool:
        """Says that it is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to a place."""
        base = (0, self._at, len(self._content))[whence]
        self._at = max(base + offset, 0)
        return self._at

    def tell(self) -> int:
        """Returns the place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Copies what is at the place."""
        found = self._content[self._at : self._at + len(buffer)]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)
