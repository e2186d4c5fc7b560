"""Tensors that one rank sends the others, in the process group of all of them.

What a rank has is handed to the others here, whether it is its model, or a piece of a result. It
is none of a program's collectives: those go in groups of the deployment's.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from autopar.runtime.collectives.wire_dtypes import carried, restored


def sent_to_all(owner: int, piece: Tensor) -> Tensor:
    """Returns on all ranks what one of them has; all call alike.

    Args:
        owner: The rank that has it.
        piece: What it has; on the other ranks, memory of the same shape, dtype and device, which
            may be written to.
    """
    buffer = carried(piece)
    dist.broadcast(buffer, owner)
    return restored(buffer, piece.dtype)


def send_to_first(piece: Tensor) -> None:
    """Sends rank 0 a piece, which receives it by `received_from`."""
    dist.send(carried(piece), 0)


def received_from(owner: int, memory: Tensor) -> Tensor:
    """Returns what a rank sends this one.

    Args:
        owner: The rank.
        memory: Of the shape and dtype of what it sends; it may be written to.
    """
    buffer = carried(memory)
    dist.recv(buffer, owner)
    return restored(buffer, memory.dtype)
