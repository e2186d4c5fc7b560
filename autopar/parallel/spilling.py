"""Tensors on the disk instead of in memory, in a file that nobody sees."""

from __future__ import annotations

import mmap
import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

import torch
from torch import Tensor

from autopar.runtime.files.digest import tensor_bytes
from autopar.runtime.job.closing import Closing


class _Place(NamedTuple):
    start: int
    dtype: torch.dtype
    shape: torch.Size


class Spill(Closing):
    """Tensors that are written one by one, and then all there, mapped from a file.

    The file has no name: it is gone when the process is, however it ends.

    Args:
        folder: On whose disk it is; made with the first tensor.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened = ExitStack()
        self._places: list[_Place] = []

    def add(self, tensor: Tensor) -> None:
        """Writes a tensor.

        Raises:
            OSError: If it can't be written.
        """
        file = self._file
        # Only from there can it be mapped.
        start = -(-file.tell() // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        file.seek(start)
        file.write(tensor_bytes(tensor))
        self._places.append(_Place(start, tensor.dtype, tensor.shape))

    def tensors(self) -> list[Tensor]:
        """Returns the tensors in the order in which they were added, each with its own storage.

        Their memory is the file's: it takes no more than the system has left for it.

        Raises:
            OSError: If what was written doesn't get to the disk.
        """
        self._file.flush()
        return [self._mapped(place) for place in self._places]

    def close(self) -> None:
        """Gives the file up; tensors that are in use stay valid."""
        self._opened.close()

    @cached_property
    def _file(self) -> IO[bytes]:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._opened.enter_context(tempfile.TemporaryFile(dir=self._folder))

    def _mapped(self, place: _Place) -> Tensor:
        size = place.shape.numel() * place.dtype.itemsize
        if not size:
            return torch.empty(place.shape, dtype=place.dtype)
        memory = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_COPY, offset=place.start)
        return torch.frombuffer(memory, dtype=place.dtype).reshape(place.shape)
