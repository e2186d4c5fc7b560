"""Digests of bytes and tensors, against accidents: damage on disks, ranks that disagree.

They are xxh3, which is as fast as memory is read. Who wants two contents with one digest can make
them; against that there is SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import xxhash
from torch import Tensor

CACHED_BYTES = 1 << 18
"""How much to read or write at a time and digest: a processor's cache has it then for both."""


def digest_bytes(*parts: bytes | memoryview) -> int:
    """Returns the digest of bytes, 64 bits; of several parts, that of all of them in a row."""
    if len(parts) == 1:
        return xxhash.xxh3_64_intdigest(parts[0])
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest()


def digest_tensors(tensors: Iterable[Tensor]) -> int:
    """Returns the digest of what tensors hold, in order, 64 bits; dtypes and shapes don't count."""
    return digest_bytes(*map(tensor_bytes, tensors))


def content_of(tensor: Tensor, parts: Iterable[Tensor] | None = None) -> str:
    """Returns what a tensor is and holds, in a few letters: equal ones have equal letters.

    Args:
        tensor: It is dense and has memory.
        parts: What of it is looked at; by default all.
    """
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    return f"{kind} {digest_tensors((tensor,) if parts is None else parts):016x}"


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Returns what a dense tensor holds, row by row, as bytes in main memory.

    It is the tensor's own memory where that is contiguous and in main memory, else a copy. A
    reader that is given it drops the interpreter's lock while it reads.
    """
    return flat_bytes(tensor.detach().resolve_conj().resolve_neg().cpu()).numpy().data


def flat_bytes(tensor: Tensor) -> Tensor:
    """Returns what a dense tensor holds, row by row, as `uint8[bytes]` where it is."""
    flat = tensor.detach().contiguous().view(-1)
    # One element is contiguous in any stride, as one of an expanded tensor in 0; bytes are in 1.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def growing_digest() -> xxhash.xxh3_128:
    """Returns a digest of 128 bits that bytes are added to with `update`; see `hexdigest`."""
    return xxhash.xxh3_128()
