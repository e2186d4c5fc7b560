"""Transfers from one part of a mesh to another: what they take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autopar.cost.collectives import CommunicationModel
from autopar.cost.reshard.redistribution import redistribution_messages
from autopar.ir.rules.transfer import Transfer


def transfer_seconds(
    args: Mapping[str, object],
    shape: Sequence[int],
    itemsize: int,
    axes: Sequence[str],
    model: CommunicationModel,
) -> float:
    """Returns the seconds of the messages of a `comm.transfer`, of who sends or gets most.

    Args:
        args: The arguments of the op.
        shape: Shape of its result on a rank.
        itemsize: Bytes per element.
        axes: The mesh axes of the group.
        model: Predicts seconds.
    """
    row = math.prod(size for dim, size in enumerate(shape) if dim != args.get("dim")) * itemsize
    return messages_seconds(Transfer.of_args(args), row, axes, model)


def messages_seconds(
    transfer: Transfer, row: int, axes: Sequence[str], model: CommunicationModel
) -> float:
    """Returns the same of a transfer.

    Args:
        transfer: Which blocks move.
        row: Bytes of an element of it.
        axes: The mesh axes of the group.
        model: Predicts seconds.
    """
    held, wanted = max(transfer.block, 1), max(transfer.arriving_block, 1)
    moved = redistribution_messages(transfer.size, held, wanted, 1, transfer.copies)
    return model.point_to_point(moved.elements * row, axes, moved.messages)
