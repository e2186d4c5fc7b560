"""What collectives are made of: pieces for every member, and the order of the backend.

Blocks are in the order in which they follow one another in the whole; a backend wants them by rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from autopar.runtime.carriers import carried, restored
from autopar.runtime.groups import Group

_T = TypeVar("_T")


def wait(pending: Tensor) -> Tensor:
    """Returns a collective's result when it is there."""
    return torch.ops._c10d_functional.wait_tensor(pending)  # type: ignore[no-any-return]


def sent_to_all(x: Tensor, group: Group) -> Tensor:
    """Starts to gather the members' tensors along dimension 0, in the backend's order."""
    ops = torch.ops._c10d_functional
    return ops.all_gather_into_tensor(  # type: ignore[no-any-return]
        x.contiguous(), group.size, group.tag
    )


def exchanged(
    pieces: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], group: Group
) -> list[Tensor]:
    """Sends one piece to each member and returns what each sent, in the order of the blocks.

    Args:
        pieces: In the order of the backend.
        shapes: Of what arrives, in the order of the blocks.
        group: The members.
    """
    dtype = pieces[0].dtype
    flat = torch.cat([carried(piece.flatten()) for piece in pieces])
    sends = [piece.numel() for piece in pieces]
    receives = in_rank_order([prod(shape) for shape in shapes], group)
    ops = torch.ops._c10d_functional
    arrived = torch.split(wait(ops.all_to_all_single(flat, receives, sends, group.tag)), receives)
    return [
        restored(arrived[at], dtype).reshape(shape)
        for at, shape in zip(group.order, shapes, strict=True)
    ]


def by_rank(blocks: Tensor, group: Group) -> Tensor:
    """Returns a tensor with an entry per block in the backend's order."""
    if is_sorted(group):
        return blocks
    return torch.stack(in_rank_order(blocks.unbind(0), group))


def in_rank_order(items: Sequence[_T], group: Group) -> list[_T]:
    """Returns items given in the order of the blocks, in the backend's order."""
    positions = sorted(range(group.size), key=group.order.__getitem__)
    return [items[position] for position in positions]


def is_sorted(group: Group) -> bool:
    """Returns whether blocks are in the backend's order."""
    return group.order == tuple(range(group.size))
