"""Weights: a rank's pieces, read from a safetensors file that is never read as a whole.

The file is mapped into memory and only the pages of the rank's pieces are touched, whatever the
piece: a block of rows, a block of columns, or the sub-dimensions of a fused dimension.

The safetensors package reads; it writes only what is in memory all at once, so files are written
here, a tensor at a time. Format: https://huggingface.co/docs/safetensors (8 bytes header length,
JSON header, tensors).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from autopar.ir.errors import InvalidInputError, near_misses
from autopar.runtime.boxes import Box, Region, narrowed, take
from autopar.runtime.closing import Closing

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


class Entry(NamedTuple):
    """The type of a tensor of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class WeightFile(Closing):
    """Safetensors files, open for reading pieces.

    A context manager. Tensors that were read stay valid after it is closed.

    Args:
        paths: The files; the first that has a tensor counts. None stands for no file.

    Raises:
        InvalidInputError: If a file is missing or is not a safetensors file.
    """

    def __init__(self, *paths: str | os.PathLike[str] | None) -> None:
        self.entries: dict[str, Entry] = {}
        self._files: dict[str, tuple[str | os.PathLike[str], Any]] = {}
        for path in paths:
            if path is not None:
                self._open(path)

    def _open(self, path: str | os.PathLike[str]) -> None:
        try:
            file = cast(Any, safe_open(path, framework="pt"))
        except OSError as error:
            raise InvalidInputError(f"can't read weights from {path}: {error}") from error
        except SafetensorError as error:
            raise InvalidInputError(
                f"{path} is not a complete safetensors file ({error}); write it again"
            ) from error
        for name in file.keys():  # noqa: SIM118  (it isn't a mapping)
            if name in self.entries:
                continue
            stored = file.get_slice(name)
            if (dtype := _DTYPES.get(stored.get_dtype())) is None:
                raise InvalidInputError(
                    f"{path}: tensor {name!r} has the unsupported dtype {stored.get_dtype()}"
                )
            self.entries[name] = Entry(dtype, tuple(stored.get_shape()))
            self._files[name] = path, file

    def read(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        box: Box,
        device: torch.device | str = "cpu",
        region: Region | None = None,
    ) -> Tensor:
        """Returns a rank's piece of a tensor, in memory of its own.

        Args:
            name: Its name in the file.
            dtype: What the program expects.
            shape: The global shape that the program expects.
            box: The rank's piece.
            device: Where the piece goes.
            region: The part of the tensor that the box is a piece of; all of it by default.

        Raises:
            InvalidInputError: If there is no such tensor or it is of another dtype or shape.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise InvalidInputError(self._absent(name))
        path, file = self._files[name]
        if (entry.dtype, entry.shape) != (dtype, shape):
            raise InvalidInputError(
                f"weight {name!r} in {path} is {_type(entry.dtype, entry.shape)}, the program"
                f" expects {_type(dtype, shape)}; compile again"
            )
        mapped = narrowed(file.get_tensor(name), region)
        piece = take(mapped, box)
        shares = piece.untyped_storage().data_ptr() == mapped.untyped_storage().data_ptr()
        return piece.to(device, copy=shares)

    def _absent(self, name: str) -> str:
        if not self._files:
            return (
                f"a build without weights has no weight {name!r}; give a safetensors file with"
                " weights=, or compile a model whose tensors have values"
            )
        places = dict.fromkeys(str(path) for path, _ in self._files.values())
        hint = near_misses(name, self.entries)
        return f"{' and '.join(places)} has no weight {name!r}{hint}; compile again"

    def close(self) -> None:
        """Unmaps the files."""
        self._files.clear()


def weight_paths(given: str | Path | Sequence[str | Path]) -> tuple[str | Path, ...]:
    """Returns one path or several as several."""
    return (given,) if isinstance(given, (str, Path)) else tuple(given)


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
    entries = {}
    for name in weights:
        tensor = weights[name]
        entries[name] = Entry(tensor.dtype, tuple(tensor.shape))
        del tensor
    write_tensors(path, entries, weights.__getitem__)


def write_tensors(
    path: str | os.PathLike[str], entries: Mapping[str, Entry], tensor: Callable[[str], Tensor]
) -> None:
    """Writes tensors to a safetensors file, one after another, as `write_weights` does.

    Args:
        path: The file; what it held is lost.
        entries: Their types by name.
        tensor: Returns a tensor by name; called once for each, in the order of `write_order`.

    Raises:
        InvalidInputError: If a dtype can't be stored.
    """
    names = write_order(entries)
    header = _header({name: entries[name] for name in names})
    with Path(path).open("wb") as file:
        file.write(header)
        for name in names:
            flat = tensor(name).detach().cpu().contiguous().reshape(-1)
            flat.view(torch.uint8).numpy().tofile(file)


def write_order(entries: Mapping[str, Entry]) -> list[str]:
    """Returns the names of tensors in the order in which they are written.

    The widest elements come first, so that each tensor is aligned to its elements.
    """
    return sorted(entries, key=lambda name: (-entries[name].dtype.itemsize, name))


def _header(entries: Mapping[str, Entry]) -> bytes:
    header: dict[str, Any] = {}
    start = 0
    for name, (dtype, shape) in entries.items():
        if dtype not in _NAMES:
            raise InvalidInputError(f"weight {name!r}: safetensors can't store {dtype}")
        size = math.prod(shape) * dtype.itemsize
        offsets = [start, start + size]
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": offsets}
        start += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _type(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
