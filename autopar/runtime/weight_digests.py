"""Digests of weights: made while they are written, and compared where they are read.

A tensor has a digest per block of its bytes, so that a rank that reads a slice checks the blocks
that it touches and no others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from autopar.ir.errors import InvalidInputError
from autopar.ir.manifest import FileEntry, WeightDigests
from autopar.runtime.closing import Closing
from autopar.runtime.digest import digest_bytes, tensor_bytes

BLOCK_BYTES = 1 << 20
"""Length of a block: what a rank reads more than it needs is at most one at each end of a slice."""


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

    Blocks are compared beside the reading, in a thread. Whether all were right is known when it is
    closed.

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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="autopar-weights")
        self._found: list[Future[str | None]] = []
        _check_header(path, digests)

    def read(self, name: str, whole: Tensor, part: Tensor) -> None:
        """Notes that a part of a tensor is read.

        Args:
            name: Of the tensor.
            whole: All of it, in the memory that the file is mapped to.
            part: A view of it.
        """
        seen = self._seen.setdefault(name, set())
        new = [at for at in touched(whole, part, self._digests.block_bytes) if at not in seen]
        seen.update(new)
        if new:
            self._found.append(self._thread.submit(self._damage, name, whole, new))

    def close(self) -> None:
        """Waits until all is compared.

        Raises:
            InvalidInputError: If something of what was read is damaged. Names all tensors.
        """
        self._thread.shutdown()
        found, self._found = self._found, []
        if damages := [damage for each in found if (damage := each.result()) is not None]:
            raise InvalidInputError(_damaged(self._path, "; ".join(damages)))

    def _damage(self, name: str, whole: Tensor, blocks: Iterable[int]) -> str | None:
        """Returns which tensor is damaged, and where first; None if it is as it was written."""
        data, size = tensor_bytes(whole), self._digests.block_bytes
        wanted = self._digests.blocks.get(name, ())
        for at in blocks:
            block = data[at * size : (at + 1) * size]
            if wanted[at : at + 1] != (digest_bytes(block),):
                return f"tensor {name!r}, in its bytes {at * size} to {at * size + len(block)},"
        return None


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
