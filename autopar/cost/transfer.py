"""Transfers from one part of a mesh to another: what they take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autopar.cost.collectives import CommunicationModel
from autopar.cost.reshard.redistribution import redistribution_messages
from autopar.ir.expr.expression import IntExpr, planned


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
    names = ("size", "block", "arriving_block", "copies")
    numbers = [number for name in names if isinstance(number := args[name], int)]
    return messages_seconds(*numbers, row, axes, model)


def messages_seconds(
    size: IntExpr,
    block: IntExpr,
    arriving_block: IntExpr,
    copies: int,
    row: int,
    axes: Sequence[str],
    model: CommunicationModel,
) -> float:
    """Returns the same for blocks of a dimension.

    Args:
        size, block, arriving_block, copies: See `Transfer`.
        row: Bytes of an element of it.
        axes: The mesh axes of the group.
        model: Predicts seconds.
    """
    held, wanted = max(planned(block), 1), max(planned(arriving_block), 1)
    moved = redistribution_messages(planned(size), held, wanted, 1, copies)
    return model.point_to_point(moved.elements * row, axes, moved.messages)
