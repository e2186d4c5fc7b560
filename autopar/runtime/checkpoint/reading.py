"""Reads what a rank needs of a checkpoint's files into its memory, and checks what it reads.

Some threads read, each some pieces at a time. A block is digested by the thread that has read it
and while its processor's caches still have it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autopar.runtime.checkpoint.index import DamagedCheckpoint, Index, Slice
from autopar.runtime.checkpoint.pieces import PieceFile, opened_file
from autopar.runtime.checkpoint.tasks import Target, Task, tasks_of, within
from autopar.runtime.checkpoint.torch_file import Unreadable, elements_at, read_tensor, read_value
from autopar.runtime.files.digest import growing_digest, tensor_bytes

_THREADS = 4
"""That read, where there are as many processors: more wait for the memory or the disk."""

_BATCH = 1 << 24
"""Bytes that a thread reads of a file before it looks for more: waking it costs little then."""

_LARGE = 1 << 28
"""Bytes of a piece that only one thread at a time makes room for, besides the tensors' own."""

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
    _carry_out(_tasks(index, wanted), _Reading(folder, index, verify))


def check_tensors(folder: Path, index: Index, wanted: Mapping[str, Sequence[Target]]) -> None:
    """Compares with its digests what `read_tensors` would read, and leaves the memory as it is.

    Args:
        folder, index, wanted: See `read_tensors`.

    Raises:
        DamagedCheckpoint: If a file isn't what was saved. Names it, and a tensor that is lost.
    """
    tasks = [replace(task, copies=()) for task in _tasks(index, wanted)]
    _carry_out(tasks, _Reading(folder, index, verify=True))


def _tasks(index: Index, wanted: Mapping[str, Sequence[Target]]) -> list[Task]:
    return [task for name, targets in wanted.items() for task in tasks_of(name, index, targets)]


def _carry_out(tasks: Sequence[Task], reading: _Reading) -> None:
    batches = list(_batches(tasks))
    count = min(_THREADS, len(os.sched_getaffinity(0)), len(batches))
    if count < 2:
        for batch in batches:
            reading.read(batch)
        return
    streams = _streams(tasks)
    with ThreadPoolExecutor(count, "autopar-reading", _follow, (streams,)) as pool:
        # The first error, in the order of the files, ends it.
        for _ in pool.map(reading.read, batches):
            pass


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
    content = bytearray(held.length)
    with opened_file(path, None, name) as file:
        file.fill(held.offset, memoryview(content), name)
    try:
        return read_value(memoryview(content))
    except Unreadable as error:
        raise DamagedCheckpoint(f"{path}: {name!r} can't be read: {error}") from error


def _batches(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Yields tasks that one thread does: those of a file, in its order, some bytes together."""
    batch: list[Task] = []
    size = 0
    for task in sorted(tasks, key=lambda each: (each.piece.slice.file, each.piece.slice.offset)):
        if batch and (size >= _BATCH or task.piece.slice.file != batch[0].piece.slice.file):
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += task.piece.slice.length
    if batch:
        yield batch


def _streams(tasks: Sequence[Task]) -> list[torch.Stream]:
    """Returns the streams on which this thread works on the accelerators that are read to."""
    devices = {copy.target.device for task in tasks for copy in task.copies}
    return [
        torch.accelerator.current_stream(device)
        for device in sorted(devices, key=str)
        if device.type != "cpu"
    ]


def _follow(streams: Sequence[torch.Stream]) -> None:
    """Has this thread work on streams: what is copied there waits for what went before."""
    for stream in streams:
        torch.accelerator.set_stream(stream)


class _Reading:
    """Reads pieces, on whichever thread.

    Args:
        folder: The checkpoint.
        index: What it holds.
        verify: Whether digests are compared.
    """

    def __init__(self, folder: Path, index: Index, verify: bool) -> None:
        self._folder = folder
        self._index = index
        self._verify = verify
        self._room = threading.Lock()

    def read(self, batch: Sequence[Task]) -> None:
        """Reads pieces of one file.

        Raises:
            DamagedCheckpoint: If one isn't what was saved.
        """
        name = batch[0].piece.slice.file
        size = self._index.files.get(name)
        with opened_file(self._folder / name, size, batch[0].name) as file:
            for task in batch:
                file.check_size(task, _OVERHEAD)
                digest = growing_digest() if self._verify and task.piece.slice.digest else None
                if (direct := _direct(task)) is not None:
                    _fill(file, task, direct, digest)
                    _copy(task, direct, digest, file.path, 1)
                elif task.piece.slice.length < _LARGE:
                    _copy(task, _held(file, task, digest), digest, file.path)
                else:
                    with self._room:
                        _copy(task, _held(file, task, digest), digest, file.path)


def _direct(task: Task) -> Tensor | None:
    """Returns memory that a piece can be read into as it is, if there is any."""
    if not task.copies:
        return None
    target = task.copies[0].target
    fits = (
        task.piece.start is not None
        and target.device.type == "cpu"
        and target.dtype == task.dtype
        and tuple(target.shape) == task.piece.sizes
        and target.is_contiguous()
    )
    return target if fits else None


def _fill(file: PieceFile, task: Task, memory: Tensor, digest: Any) -> None:
    """Reads a piece's elements into memory, and what is around them only for the digest."""
    place = task.piece.slice
    assert task.piece.start is not None
    head, body = bytearray(task.piece.start), tensor_bytes(memory)
    tail = bytearray(place.length - len(head) - len(body))
    at = place.offset
    for part in (memoryview(head), body, memoryview(tail)):
        file.fill(at, part, task.name, digest)
        at += len(part)


def _held(file: PieceFile, task: Task, digest: Any) -> Tensor:
    """Returns a piece, read into memory of its own."""
    place, sizes = task.piece.slice, task.piece.sizes
    content = tensor_bytes(torch.empty(place.length, dtype=torch.uint8))
    file.fill(place.offset, content, task.name, digest)
    if task.piece.start is not None:
        return elements_at(content, task.piece.start, task.dtype, sizes)
    try:
        return read_tensor(content, sizes)
    except Unreadable as error:
        raise DamagedCheckpoint(f"{task.name!r} in {file.path} can't be read: {error}") from error


def _copy(task: Task, held: Tensor, digest: Any, path: Path, done: int = 0) -> None:
    """Copies what was read to where it is wanted, if it is what was saved.

    Raises:
        DamagedCheckpoint: If it isn't.
    """
    if digest is not None and digest.hexdigest() != task.piece.slice.digest:
        raise DamagedCheckpoint(
            f"{task.name!r} in {path} isn't what was saved (its digest differs): the file is"
            " damaged, or of another save; go on from another checkpoint"
        )
    for copy in task.copies[done:]:
        copy.target.copy_(within(held, copy.source, copy.target.shape))
