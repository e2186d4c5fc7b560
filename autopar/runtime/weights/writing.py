"""Writes tensors to safetensors files, one after another.

The safetensors package writes only what is in memory all at once. Format:
https://huggingface.co/docs/safetensors (8 bytes header length, JSON header, tensors).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.builds.manifest import FileEntry, WeightDigests
from autopar.runtime.files.digest import tensor_bytes
from autopar.runtime.weights.digests import Digesting

DTYPE_NAMES: Mapping[torch.dtype, str] = {
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
"""Names of dtypes in safetensors files."""


class Entry(NamedTuple):
    """The type of a tensor of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def write_digested(path: Path, weights: Mapping[str, Tensor]) -> tuple[FileEntry, WeightDigests]:
    """Writes weights as `write_weights` does, and returns what a build's manifest has of them."""
    digesting = Digesting()
    write_weights(path, weights, digesting)
    return digesting.result(path.name)


def write_weights(
    path: str | os.PathLike[str],
    weights: Mapping[str, Tensor],
    digesting: Digesting | None = None,
) -> None:
    """Writes tensors to a safetensors file, one after another, the same bytes for the same tensors.

    `weights` may compute its tensors on access: twice each, for the header and for the data, and
    one at a time.

    Args:
        path: The file; what it held is lost.
        weights: Tensors by name.
        digesting: Is shown what is written.

    Raises:
        InvalidInputError: If a dtype can't be stored.
    """
    entries = {}
    for name in weights:
        tensor = weights[name]
        entries[name] = Entry(tensor.dtype, tuple(tensor.shape))
        del tensor
    write_tensors(path, entries, weights.__getitem__, digesting)


def write_tensors(
    path: str | os.PathLike[str],
    entries: Mapping[str, Entry],
    tensor: Callable[[str], Tensor],
    digesting: Digesting | None = None,
) -> None:
    """Writes tensors to a safetensors file, one after another, as `write_weights` does.

    Args:
        path: The file; what it held is lost.
        entries: Their types by name.
        tensor: Returns a tensor by name; called once for each, in the order of `write_order`.
        digesting: Is shown what is written.

    Raises:
        InvalidInputError: If a dtype can't be stored.
    """
    names = write_order(entries)
    header = _header({name: entries[name] for name in names})
    with Path(path).open("wb") as file:
        file.write(header)
        if digesting is not None:
            digesting.header(header)
        for name in names:
            data = tensor_bytes(tensor(name))
            file.write(data)
            if digesting is not None:
                digesting.tensor(name, data)


def write_order(entries: Mapping[str, Entry]) -> list[str]:
    """Returns the names of tensors in the order in which they are written.

    The widest elements come first, so that each tensor is aligned to its elements.
    """
    return sorted(entries, key=lambda name: (-entries[name].dtype.itemsize, name))


def _header(entries: Mapping[str, Entry]) -> bytes:
    # Libraries of Hugging Face's want to know in which format it was.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, (dtype, shape) in entries.items():
        if dtype not in DTYPE_NAMES:
            raise InvalidInputError(
                f"weight {name!r}: safetensors can't store {dtype}; keep it in another dtype, and"
                " complex numbers of 128 bits as real ones (torch.view_as_real)"
            )
        size = math.prod(shape) * dtype.itemsize
        offsets = [start, start + size]
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": shape, "data_offsets": offsets}
        start += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
