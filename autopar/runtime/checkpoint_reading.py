"""Reads what a rank needs of a checkpoint's files into its memory, and checks what it reads.

What is read is digested on a second thread while the next block is read, so that it takes hardly
longer than without.
"""

from __future__ import annotations

import math
import os
import queue
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from autopar.ir.errors import os_reason
from autopar.runtime.checkpoint_index import DamagedCheckpoint, Index, Slice
from autopar.runtime.checkpoint_tasks import Target, Task, tasks_of, within
from autopar.runtime.digest import growing_digest, tensor_bytes
from autopar.runtime.torch_file import Unreadable, elements_at, read_tensor, read_value

_BLOCK = 1 << 23
"""Bytes that are read at a time, and digested while the next are read."""

_AHEAD = 4
"""How often what waits to be digested may be handed over before it is."""

_OVERHEAD = 1 << 20
"""Bytes that a file of torch.save may have besides the elements."""


def read_tensors(
    folder: Path, index: Index, wanted: Mapping[str, Sequence[Target]], verify: bool = True
) -> None:
    """Reads rectangles of tensors into memory.

    Args:
        folder: The checkpoint.
        index: What it holds.
        wanted: What is wanted of each tensor, by a name of the index.
        verify: Whether digests are compared.

    Raises:
        DamagedCheckpoint: If a file isn't what was saved. Names it, and a tensor that is lost.
    """
    tasks = [task for name, targets in wanted.items() for task in tasks_of(name, index, targets)]
    by_file: dict[str, list[Task]] = {}
    for task in tasks:
        by_file.setdefault(task.piece.slice.file, []).append(task)
    with _Verifier(verify) as verifier:
        for file, of_file in sorted(by_file.items()):
            with _opened(folder / file, index.files.get(file), of_file[0].name) as opened:
                for task in sorted(of_file, key=lambda each: each.piece.slice.offset):
                    _read(_Source(folder / file, opened, verifier), task)


def read_values(folder: Path, index: Index, names: Sequence[str]) -> dict[str, Any]:
    """Returns plain values by name.

    Raises:
        DamagedCheckpoint: If one can't be read.
    """
    return {name: _value(folder, name, index.values[name]) for name in names}


def _value(folder: Path, name: str, held: Any) -> Any:
    if not isinstance(held, Slice):
        return held
    path = folder / held.file
    if held.length > _OVERHEAD:
        raise DamagedCheckpoint(f"{path} can't have {name!r}: a plain value isn't that long")
    with _opened(path, None, name) as file, _Verifier(False) as verifier:
        content = bytearray(held.length)
        _Source(path, file, verifier).fill(held.offset, memoryview(content), name)
    try:
        return read_value(memoryview(content))
    except Unreadable as error:
        raise DamagedCheckpoint(f"{path}: {name!r} can't be read: {error}") from error


@contextmanager
def _opened(path: Path, length: int | None, name: str) -> Iterator[IO[bytes]]:
    """Opens a file.

    Args:
        path: The file.
        length: Its length in bytes, if that is known.
        name: A tensor in it, for the error.

    Raises:
        DamagedCheckpoint: If it isn't there, or of another length.
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
        with path.open("rb", buffering=0) as file:
            yield file
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{path} is missing; {name!r} can't be read") from error
    except OSError as error:
        raise DamagedCheckpoint(f"can't read {name!r} in {path}: {os_reason(error)}") from error


@dataclass(frozen=True)
class _Source:
    """A file that is read, block after block, by whoever checks the digests."""

    path: Path
    file: IO[bytes]
    verifier: _Verifier

    def fill(self, offset: int, memory: memoryview, name: str, digest: Any = None) -> None:
        """Reads a part of the file into memory.

        Raises:
            DamagedCheckpoint: If the file ends before.
        """
        self.file.seek(offset)
        at = 0
        while at < len(memory):
            read = self.file.readinto(memory[at : at + _BLOCK])  # type: ignore[attr-defined]
            if not read:
                raise DamagedCheckpoint(f"{self.path} is cut off; {name!r} can't be read")
            self.verifier.add(digest, memory[at : at + read])
            at += read


def _read(source: _Source, task: Task) -> None:
    place = task.piece.slice
    _check_size(source, task)
    digest = growing_digest() if place.digest else None
    if (direct := _direct(task)) is not None:
        assert task.piece.start is not None
        head, body = bytearray(task.piece.start), tensor_bytes(direct)
        tail = bytearray(place.length - len(head) - len(body))
        at = place.offset
        for part in (memoryview(head), body, memoryview(tail)):
            source.fill(at, part, task.name, digest)
            at += len(part)
        copies = task.copies[1:]
        held = direct
    else:
        held = _held(source, task, digest)
        copies = task.copies
    for copy in copies:
        copy.target.copy_(within(held, copy.source, copy.target.shape))
    source.verifier.end(digest, place.digest, f"{task.name!r} in {source.path}")


def _check_size(source: _Source, task: Task) -> None:
    """Refuses a piece that can't be so long, before room is made for it.

    Raises:
        DamagedCheckpoint: If it can't.
    """
    place = task.piece.slice
    elements = math.prod(task.piece.sizes) * task.dtype.itemsize
    if not elements <= place.length <= elements + _OVERHEAD:
        raise DamagedCheckpoint(
            f"{source.path}: {task.name!r} can't take {place.length:,} bytes; the file that says so"
            " is damaged"
        )
    if place.offset + place.length > os.fstat(source.file.fileno()).st_size:
        raise DamagedCheckpoint(f"{source.path} is cut off; {task.name!r} can't be read")


def _direct(task: Task) -> Tensor | None:
    """Returns memory that a piece can be read into as it is, if there is any."""
    target = task.copies[0].target
    fits = (
        task.piece.start is not None
        and target.device.type == "cpu"
        and target.dtype == task.dtype
        and tuple(target.shape) == task.piece.sizes
        and target.is_contiguous()
    )
    return target if fits else None


def _held(source: _Source, task: Task, digest: Any) -> Tensor:
    """Returns a piece, read into memory of its own."""
    place, sizes = task.piece.slice, task.piece.sizes
    content = memoryview(bytearray(place.length))
    source.fill(place.offset, content, task.name, digest)
    if task.piece.start is not None:
        return elements_at(content, task.piece.start, task.dtype, sizes)
    try:
        return read_tensor(content, sizes)
    except Unreadable as error:
        raise DamagedCheckpoint(f"{task.name!r} in {source.path} can't be read: {error}") from error


_Work = tuple[Any, Any, str]
"""A digest and a block for it; or, with words for the error, what it must be by now."""


class _Verifier:
    """Digests what is read, on a thread of its own, in the order in which it is read.

    Args:
        active: Whether it does.
    """

    def __init__(self, active: bool) -> None:
        self._active = active
        self._work: queue.Queue[list[_Work] | None] = queue.Queue(_AHEAD)
        # Handed over some blocks at a time: waking a thread costs as much as digesting a small one.
        self._next: list[_Work] = []
        self._bytes = 0
        self._damaged: list[str] = []
        self._thread = threading.Thread(target=self._run, name="autopar-digests", daemon=True)

    def __enter__(self) -> _Verifier:
        if self._active:
            self._thread.start()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._active:
            self._work.put(self._next)
            self._work.put(None)
            self._thread.join()
        if kind is None and self._damaged:
            raise DamagedCheckpoint(self._damaged[0])

    def add(self, digest: Any, block: memoryview) -> None:
        """Digests a block, soon."""
        if self._active and digest is not None:
            self._next.append((digest, block, ""))
            self._bytes += len(block)
            if self._bytes >= _BLOCK:
                self._work.put(self._next)
                self._next, self._bytes = [], 0

    def end(self, digest: Any, expected: str, what: str) -> None:
        """Compares a digest with what it must be when all before is digested.

        Raises:
            DamagedCheckpoint: If something before was damaged.
        """
        if self._active and digest is not None:
            self._next.append((digest, expected, what))
        if self._damaged:
            raise DamagedCheckpoint(self._damaged[0])

    def _run(self) -> None:
        while (works := self._work.get()) is not None:
            for digest, content, what in works:
                if not what:
                    digest.update(content)
                elif digest.hexdigest() != content:
                    self._damaged.append(
                        f"{what} isn't what was saved (its digest differs): the file is damaged, or"
                        " of another save; go on from another checkpoint"
                    )
