"""What collectives are made of: pieces for every member, and the order of the backend.

Blocks are in the order in which they follow one another in the whole; a backend wants them by rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from autopar.ir.memory.kernels import SHORT_GATHER_BYTES
from autopar.runtime.collectives.groups import Group
from autopar.runtime.collectives.wire_dtypes import carried, restored

_T = TypeVar("_T")


def wait(pending: Tensor) -> Tensor:
    """Returns a collective's result when it is there."""
    return torch.ops._c10d_functional.wait_tensor(pending)  # type: ignore[no-any-return]


def sent_to_all(x: Tensor, group: Group) -> Tensor:
    """Starts to gather the members' tensors along dimension 0, in the backend's order."""
    x = x.contiguous()
    ops = torch.ops._c10d_functional
    if group.backend == "nccl":
        return ops.all_gather_into_tensor(x, group.size, group.tag)  # type: ignore[no-any-return]
    # Gloo runs that op as ALLGATHER_COALESCED, with which torch 2.11 to 2.15 corrupts the heap. The
    # two threads of a group note the name of what each has completed in one string, without a lock
    # (`ProcessGroupGloo::runLoop`). Where two end at the same time, a name that is too long to lie
    # within the string, beyond 15 characters, is freed twice. The names of all ops that are used
    # here are short: ALLGATHER, ALLREDUCE, ALLTOALL_BASE, BROADCAST.
    # Inductor would give the memory of what an op with `out=` sends to others before anybody waits
    # for it, and torch 2.11 and 2.12 have no functional form of such an op.
    if torch.compiler.is_compiling() or group.size * x.nbytes <= SHORT_GATHER_BYTES:
        rows = [x.shape[0]] * group.size
        copies = torch.cat([x] * group.size)
        return ops.all_to_all_single(copies, rows, rows, group.tag)  # type: ignore[no-any-return]
    gathered = x.new_empty((group.size * x.shape[0], *x.shape[1:]))
    return ops.all_gather_into_tensor_out(  # type: ignore[no-any-return]
        x, group.size, group.tag, out=gathered
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
