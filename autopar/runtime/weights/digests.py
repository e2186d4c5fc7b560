"""Digests of weights: made while they are written, and compared where they are read.

A tensor has a digest per block of its bytes, so that a rank that reads a slice checks the blocks
that it touches and no others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.builds.manifest import FileEntry, WeightDigests
from autopar.runtime.files.digest import digest_bytes, tensor_bytes
from autopar.runtime.job.closing import Closing

BLOCK_BYTES = 1 << 20
"""Length of a block: what a rank reads more than it needs is at most one at each end of a slice."""

Bytes = npt.NDArray[np.uint8]

_THREADS = 4
"""That compare, where there are as many processors."""

_SHARE = 8
"""Blocks that a thread takes at a time: waking it costs little then."""


class Digesting:
    """Digests what is written to a file of weights, as it is written."""

    def __init__(self) -> None:
        self._file = hashlib.sha256()
        self._bytes = 0
        self._header = 0
        self._blocks: dict[str, tuple[int, ...]] = {}

    def header(self, data: bytes) -> None:
        """Takes what stands before the tensors."""
        self._take(data)
        self._header = digest_bytes(data)

    def tensor(self, name: str, data: memoryview) -> None:
        """Takes the bytes of the next tensor."""
        self._take(data)
        self._blocks[name] = tuple(
            digest_bytes(data[start : start + BLOCK_BYTES])
            for start in range(0, len(data), BLOCK_BYTES)
        )

    def result(self, name: str) -> tuple[FileEntry, WeightDigests]:
        """Returns the entry of the file in a manifest, and the digests of what it holds."""
        entry = FileEntry(name, self._file.hexdigest(), self._bytes)
        return entry, WeightDigests(BLOCK_BYTES, self._header, self._blocks)

    def _take(self, data: bytes | memoryview) -> None:
        self._file.update(data)
        self._bytes += len(data)


class Checking(Closing):
    """Compares what is read of a file of weights with its digests.

    Whether all was right is known when it is closed.

    Args:
        path: The file.
        digests: What it held when it was written.

    Raises:
        InvalidInputError: If what stands before the tensors is damaged.
    """

    def __init__(self, path: Path, digests: WeightDigests) -> None:
        self._path = path
        self._digests = digests
        self._seen: dict[str, set[int]] = {}
        self._damages: dict[str, list[tuple[int, int]]] = {}
        self._running: list[Future[None]] = []
        count = min(_THREADS, len(os.sched_getaffinity(0)))
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="autopar-weights")
        _check_header(path, digests)

    def read(self, name: str, whole: Tensor, part: Tensor) -> None:
        """Notes that a part of a tensor is read, and compares it beside that, in a thread.

        Args:
            name: Of the tensor.
            whole: All of it, in the memory that the file is mapped to.
            part: A view of it.
        """
        blocks = self._touched(whole, part)
        if new := self._new(name, blocks):
            data = tensor_bytes(whole)
            for some in _shares(new):
                self._running.append(self._threads.submit(self._compare, name, data, some))

    def copied(self, name: str, whole: Tensor, part: Tensor) -> Tensor:
        """Returns a part of a tensor in memory of its own.

        A block is compared and then copied, while a cache has it; long parts by several threads.

        Args:
            name: Of the tensor.
            whole: All of it, in the memory that the file is mapped to.
            part: A contiguous view of it.
        """
        blocks = self._touched(whole, part)
        new = set(self._new(name, blocks))
        source, target = tensor_bytes(whole), torch.empty_like(part)
        # Unlike memoryviews, arrays let other threads run while they are copied.
        given, taken = np.asarray(source), np.asarray(tensor_bytes(target))
        start = part.data_ptr() - whole.data_ptr()

        def copy(some: Sequence[int]) -> None:
            for at in some:
                self._compare(name, source, [at] if at in new else [])
                _copy(given, taken, start, self._span(source, at))

        shares = _shares(blocks)
        for _ in map(copy, shares) if len(shares) == 1 else self._threads.map(copy, shares):
            pass
        return target

    def close(self) -> None:
        """Waits until all is compared.

        Raises:
            InvalidInputError: If something of what was read is damaged. Names all tensors.
        """
        self._threads.shutdown()
        for each in self._running:
            each.result()
        damages, self._damages = self._damages, {}
        if found := [(name, *min(damages[name])) for name in self._seen if name in damages]:
            words = (f"tensor {name!r}, in its bytes {at} to {end}," for name, at, end in found)
            raise InvalidInputError(_damaged(self._path, "; ".join(words)))

    def _touched(self, whole: Tensor, part: Tensor) -> list[int]:
        return touched(whole, part, self._digests.block_bytes)

    def _new(self, name: str, blocks: Iterable[int]) -> list[int]:
        """Returns those blocks that weren't compared yet, which they count as from now on."""
        seen = self._seen.setdefault(name, set())
        new = [at for at in blocks if at not in seen]
        seen.update(new)
        return new

    def _span(self, data: memoryview, at: int) -> tuple[int, int]:
        size = self._digests.block_bytes
        return at * size, min((at + 1) * size, len(data))

    def _compare(self, name: str, data: memoryview, blocks: Iterable[int]) -> None:
        """Notes which blocks aren't as they were written."""
        wanted = self._digests.blocks.get(name, ())
        for at in blocks:
            start, end = self._span(data, at)
            if wanted[at : at + 1] != (digest_bytes(data[start:end]),):
                self._damages.setdefault(name, []).append((start, end))


def _shares(blocks: Sequence[int]) -> list[Sequence[int]]:
    return [blocks[at : at + _SHARE] for at in range(0, len(blocks), _SHARE)]


def _copy(given: Bytes, taken: Bytes, start: int, span: tuple[int, int]) -> None:
    """Copies what is taken from `start` on, as far as it is in a span of what is given."""
    begin, end = max(span[0], start), min(span[1], start + len(taken))
    np.copyto(taken[begin - start : end - start], given[begin:end])


def touched(whole: Tensor, part: Tensor, block_bytes: int) -> list[int]:
    """Returns the blocks of a contiguous tensor that hold elements of a view of it, in order."""
    if not part.numel():
        return []
    width = whole.element_size()
    start = part.data_ptr() - whole.data_ptr()
    starts, length = [start], width
    strides = sorted(
        (stride * width, size)
        for stride, size in zip(part.stride(), part.shape, strict=True)
        if size > 1
    )
    for stride, size in strides:
        if stride <= block_bytes:
            # No block between two elements is left out.
            length += stride * (size - 1)
        else:
            starts = [first + stride * at for first in starts for at in range(size)]
    return sorted(
        {
            at
            for first in starts
            for at in range(first // block_bytes, (first + length - 1) // block_bytes + 1)
        }
    )


def _check_header(path: Path, digests: WeightDigests) -> None:
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        # A damaged length may be anything.
        data = start + file.read(min(length, path.stat().st_size))
    if digest_bytes(data) != digests.header:
        raise InvalidInputError(_damaged(path, "its header"))


def _damaged(path: Path, what: str) -> str:
    return (
        f"{path} is damaged: {what} isn't as it was written; compile the model again, or copy the"
        " whole folder again"
    )
