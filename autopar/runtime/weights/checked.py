"""Reads all files of weights, as Hugging Face's libraries write them: they have no digests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from autopar.base.errors import InvalidInputError, os_reason
from autopar.ir.builds.files import MANIFEST, SERIAL
from autopar.runtime.weights.sources import sources_of
from autopar.runtime.weights.weights import WeightFile

_BLOCK = 1 << 22


class Read(NamedTuple):
    """What was read.

    Attributes:
        files: Number of files with tensors.
        tensors: Number of tensors.
        bytes: Of the files.
    """

    files: int
    tensors: int
    bytes: int


def holds_weights(path: Path) -> bool:
    """Whether a path is that of weights, and not of a build: a file, an index, or their folder."""
    if path.is_file():
        return path.name.endswith((".safetensors", ".safetensors.index.json"))
    built = any((path / name).exists() for name in (MANIFEST, SERIAL))
    return not built and any(path.glob("*.safetensors*"))


def check_weights_given(path: Path) -> Read:
    """Compares files with their headers and with the index, if there is one, and reads them.

    Raises:
        InvalidInputError: If a file is missing, cut off, or can't be read, or lacks a tensor that
            the index says it has, or two files have the same.
    """
    with WeightFile(path) as file:
        tensors = len(file.entries)
    paths = [source.path for source in sources_of(path)]
    return Read(len(paths), tensors, sum(map(_read, paths)))


def _read(path: Path) -> int:
    """Reads a file; returns its length in bytes."""
    room, length = bytearray(_BLOCK), 0
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(room):
                length += count
    except OSError as error:
        raise InvalidInputError(f"can't read weights from {path}: {os_reason(error)}") from error
    return length
