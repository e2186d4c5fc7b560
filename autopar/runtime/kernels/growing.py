"""Appends to what a program keeps from call to call, without copying what is there already.

A program that keeps the concatenation of what it kept before and something new would copy all of it
in each call. Here the result has room behind it, which the next call writes to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ROOM = "_autopar_room"
"""The attribute of a tensor that says what is behind it."""


@dataclass
class _Room:
    """Memory of which a part is used.

    Attributes:
        buffer: The memory.
        dim: The dimension along which it is filled.
        used: How much of that is.
    """

    buffer: Tensor
    dim: int
    used: int


def append(tensors: list[Tensor], dim: int = 0) -> Tensor:
    """Returns a concatenation, as `aten.cat` does.

    If the first tensor is a result of this, and the last one of its memory, the others are written
    behind it. Otherwise all are copied to memory twice as large as what they need. So along a chain
    of calls an element is copied twice on average, however long the chain is.

    Args:
        tensors: Of one dtype and rank.
        dim: Along which dimension.
    """
    first, *others = tensors
    dim %= first.ndim
    end = sum(tensor.shape[dim] for tensor in tensors)
    room: _Room | None = getattr(first, _ROOM, None)
    if room is None or not _goes_on(room, first, dim, end):
        room = _room_for(first, dim, 2 * end)
    at = first.shape[dim]
    for tensor in others:
        room.buffer.narrow(dim, at, tensor.shape[dim]).copy_(tensor)
        at += tensor.shape[dim]
    room.used = end
    grown = room.buffer.narrow(dim, 0, end)
    setattr(grown, _ROOM, room)
    return grown


def has_room(tensor: Tensor) -> bool:
    """Returns whether a tensor is a result of `append`: memory of its own, with room behind it."""
    return hasattr(tensor, _ROOM)


def _goes_on(room: _Room, first: Tensor, dim: int, end: int) -> bool:
    """Returns whether nobody has written behind a tensor yet, and there is room."""
    return room.dim == dim and room.used == first.shape[dim] and end <= room.buffer.shape[dim]


def _room_for(first: Tensor, dim: int, size: int) -> _Room:
    shape = [*first.shape]
    shape[dim] = size
    buffer = torch.empty(shape, dtype=first.dtype, device=first.device)
    buffer.narrow(dim, 0, first.shape[dim]).copy_(first)
    return _Room(buffer, dim, first.shape[dim])
