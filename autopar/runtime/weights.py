"""Weights: a rank's pieces, read from a safetensors file that is never read as a whole.

The file is mapped into memory and only the pages of the rank's pieces are touched, whatever the
piece: a block of rows, a block of columns, or the sub-dimensions of a fused dimension.
Format: https://huggingface.co/docs/safetensors (8 bytes header length, JSON header, tensors).
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autopar.ir.errors import InvalidInputError, near_misses
from autopar.runtime.boxes import Box, take

WEIGHT_ROLES = ("parameter", "buffer", "constant", "optimizer_state")
"""Roles of inputs whose value comes with the program and not from the user."""

_NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_LARGEST_HEADER = 100_000_000


class Entry(NamedTuple):
    """A tensor of the file: its dtype, shape, and where its bytes start."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


class WeightFile:
    """A safetensors file, open for reading pieces.

    A context manager. Tensors that were read stay valid after it is closed.

    Args:
        path: The file; None for a program without weights.

    Raises:
        InvalidInputError: If the file is missing or is not a safetensors file.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = path
        self.entries: Mapping[str, Entry] = {}
        # Anonymous memory stands for a file without tensors.
        self._memory = mmap.mmap(-1, 1) if path is None else _map(Path(path))
        if path is None:
            return
        try:
            self.entries = _entries(self._memory)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._memory.close()
            raise InvalidInputError(
                f"{self.path} is not a complete safetensors file ({error}); write it again"
            ) from error

    def read(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        box: Box,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Returns a rank's piece of a tensor, in memory of its own.

        Args:
            name: Its name in the file.
            dtype: What the program expects.
            shape: The global shape that the program expects.
            box: The rank's piece.
            device: Where the piece goes.

        Raises:
            InvalidInputError: If there is no such tensor or it is of another dtype or shape.
        """
        entry = self.entries.get(name)
        if entry is None:
            hint = near_misses(name, self.entries)
            where = self.path or "a build without weights"
            raise InvalidInputError(f"{where} has no weight {name!r}{hint}; compile again")
        if (entry.dtype, entry.shape) != (dtype, shape):
            raise InvalidInputError(
                f"weight {name!r} in {self.path} is {_type(entry.dtype, entry.shape)}, the program"
                f" expects {_type(dtype, shape)}; compile again"
            )
        count = math.prod(shape)
        if count == 0:
            return take(torch.empty(shape, dtype=dtype), box).to(device)
        mapped = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=entry.start)
        piece = take(mapped.view(shape), box)
        shares = piece.untyped_storage().data_ptr() == mapped.untyped_storage().data_ptr()
        return piece.to(device, copy=shares)

    def close(self) -> None:
        """Unmaps the file."""
        self._memory.close()

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def write_weights(path: str | os.PathLike[str], weights: Mapping[str, Tensor]) -> None:
    """Writes tensors to a safetensors file, one after another, the same bytes for the same tensors.

    `weights` may compute its tensors on access: twice each, for the header and for the data, and
    one at a time.

    Args:
        path: The file; what it held is lost.
        weights: Tensors by name.

    Raises:
        InvalidInputError: If a dtype can't be stored.
    """
    names = sorted(weights)
    table: list[tuple[str, str, tuple[int, ...], int]] = []
    for name in names:
        tensor = weights[name]
        if tensor.dtype not in _NAMES:
            raise InvalidInputError(f"weight {name!r}: safetensors can't store {tensor.dtype}")
        shape = tuple(tensor.shape)
        table.append((name, _NAMES[tensor.dtype], shape, math.prod(shape) * tensor.itemsize))
    # The widest elements first, so that each tensor is aligned to its elements.
    table.sort(key=lambda row: -_DTYPES[row[1]].itemsize)
    with Path(path).open("wb") as file:
        file.write(_header(table))
        for name, *_ in table:
            flat = weights[name].detach().cpu().contiguous().reshape(-1)
            flat.view(torch.uint8).numpy().tofile(file)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            # Private to the process: torch wants writable memory, the file stays as it is.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"can't read weights from {path}: {error}") from error


def _header(table: Iterable[tuple[str, str, tuple[int, ...], int]]) -> bytes:
    header: dict[str, Any] = {}
    start = 0
    for name, dtype, shape, size in table:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _entries(memory: mmap.mmap) -> dict[str, Entry]:
    length = int.from_bytes(memory[:8], "little")
    if len(memory) < 8 or length > min(_LARGEST_HEADER, len(memory) - 8):
        raise ValueError(f"header of {length} bytes in a file of {len(memory)}")
    header = json.loads(memory[8 : 8 + length])
    return {
        name: _entry(name, fields, 8 + length, len(memory))
        for name, fields in header.items()
        if name != "__metadata__"
    }


def _entry(name: str, fields: Mapping[str, Any], base: int, file_size: int) -> Entry:
    dtype = _DTYPES.get(fields["dtype"])
    if dtype is None:
        raise ValueError(f"tensor {name!r} has the unknown dtype {fields['dtype']!r}")
    shape = tuple(int(size) for size in fields["shape"])
    start, end = fields["data_offsets"]
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or start < 0 or end - start != size or base + end > file_size:
        raise ValueError(f"tensor {name!r} does not fit its {end - start} bytes")
    return Entry(dtype, shape, base + start)


def _type(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
