"""The memory that a session and its ranks share: tensors of a request are where all see them.

It is a file without a name, which the ranks get with a message. So nothing is left of it, whoever
is killed.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autopar.runtime.kernels.table import TORCH_DTYPES

_SHARED = Path("/dev/shm")
_ALIGNED = 64
"""Bytes at multiples of which tensors begin."""

_LEAST = 1 << 20


class Slot(NamedTuple):
    """Where a tensor lies.

    Attributes:
        dtype: Its dtype, by its name in programs.
        shape: Its shape.
        start: The byte at which it begins.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int

    @classmethod
    def of_json(cls, given: Any) -> Slot:
        """Returns what JSON made a list."""
        dtype, shape, start = given
        return cls(dtype, tuple(shape), start)


def laid_out(tensors: Mapping[str, tuple[str, tuple[int, ...]]], start: int = 0) -> dict[str, Slot]:
    """Returns slots for tensors of a dtype and a shape, one behind the other."""
    found = {}
    for label, (dtype, shape) in tensors.items():
        found[label] = Slot(dtype, shape, start)
        start += -(-_nbytes(dtype, shape) // _ALIGNED) * _ALIGNED
    return found


def end_of(slots: Iterable[Slot]) -> int:
    """Returns how many bytes slots take, from the first byte on."""
    return max((slot.start + _nbytes(slot.dtype, slot.shape) for slot in slots), default=0)


class Arena:
    """Memory that processes share.

    Args:
        file: The number of an open file, which is closed here.

    Attributes:
        size: Its bytes.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self.size = os.fstat(file).st_size
        self._memory = mmap.mmap(file, self.size)

    @classmethod
    def make(cls, size: int) -> Arena:
        """Returns new memory of at least so many bytes."""
        place = _SHARED if _SHARED.is_dir() else None
        with tempfile.TemporaryFile(dir=place) as file:
            file.truncate(max(_LEAST, 1 << (size - 1).bit_length()) if size else _LEAST)
            return cls(os.dup(file.fileno()))

    @property
    def file(self) -> int:
        """The number of the open file, for who is to share it."""
        return self._file

    def tensor(self, slot: Slot) -> Tensor:
        """Returns the tensor at a slot, which is this memory."""
        dtype, count = TORCH_DTYPES[slot.dtype], math.prod(slot.shape)
        if not count:
            return torch.empty(slot.shape, dtype=dtype)
        found = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=slot.start)
        return found.view(slot.shape)

    def close(self) -> None:
        """Gives the file back; the memory goes with the last tensor in it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * TORCH_DTYPES[dtype].itemsize
