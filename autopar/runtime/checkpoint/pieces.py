"""A file of a checkpoint, of which parts are read into memory and digested on the way."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autopar.base.errors import os_reason
from autopar.runtime.checkpoint.index import DamagedCheckpoint
from autopar.runtime.checkpoint.tasks import Task
from autopar.runtime.files.digest import CACHED_BYTES


@dataclass(frozen=True)
class PieceFile:
    """A file that is open for reading, by one thread.

    Attributes:
        path: The file.
        descriptor: The system's.
        size: How many bytes it has.
    """

    path: Path
    descriptor: int
    size: int

    def fill(self, offset: int, memory: memoryview, name: str, digest: Any = None) -> None:
        """Reads a part of the file into memory.

        Args:
            offset: Where it begins.
            memory: As long as the part.
            name: The tensor, for the error.
            digest: What the bytes are added to.

        Raises:
            DamagedCheckpoint: If the file ends before.
        """
        at = 0
        while at < len(memory):
            block = memory[at : at + CACHED_BYTES]
            read = os.preadv(self.descriptor, [block], offset + at)
            if not read:
                raise DamagedCheckpoint(f"{self.path} is cut off; {name!r} can't be read")
            if digest is not None:
                digest.update(block[:read])
            at += read

    def check_size(self, task: Task, overhead: int) -> None:
        """Refuses a piece that can't be so long, before room is made for it.

        Args:
            task: Has the piece.
            overhead: Bytes that it may have besides its elements.

        Raises:
            DamagedCheckpoint: If it can't.
        """
        place = task.piece.slice
        elements = math.prod(task.piece.sizes) * task.dtype.itemsize
        if not elements <= place.length <= elements + overhead:
            raise DamagedCheckpoint(
                f"{self.path}: {task.name!r} can't take {place.length:,} bytes; the file that says"
                " so is damaged"
            )
        if place.offset + place.length > self.size:
            raise DamagedCheckpoint(f"{self.path} is cut off; {task.name!r} can't be read")


@contextmanager
def opened_file(path: Path, length: int | None, name: str) -> Iterator[PieceFile]:
    """Opens a file.

    Args:
        path: The file.
        length: Its length in bytes, if that is known.
        name: A tensor in it, for the error.

    Raises:
        DamagedCheckpoint: If it isn't there, or of another length, or can't be read.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise DamagedCheckpoint(f"{path} is no file; {name!r} can't be read")
        if length is not None and found.st_size != length:
            raise DamagedCheckpoint(
                f"{path} has {found.st_size:,} bytes, {length:,} were saved; {name!r} can't be"
                " read: the file is damaged, or another one"
            )
        descriptor = os.open(path, os.O_RDONLY)
        try:
            yield PieceFile(path, descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{path} is missing; {name!r} can't be read") from error
    except OSError as error:
        raise DamagedCheckpoint(f"can't read {name!r} in {path}: {os_reason(error)}") from error
