"""The halo: what of its windows a rank doesn't hold, in bytes and seconds.

A halo comes from neighbours, however many there are, so it costs one message's latency and what
the busiest rank gets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autopar.cost.collectives import CommunicationModel
from autopar.cost.reshard.redistribution import redistribution_messages
from autopar.ir.rules.redistribution import Redistribution


def redistribute_seconds(
    args: Mapping[str, object],
    shape: Sequence[int],
    itemsize: int,
    axes: Sequence[str],
    model: CommunicationModel,
) -> float:
    """Returns the seconds of the messages of a `comm.redistribute`.

    Where blocks are cut anew, a process gets its own from several others, one after another.

    Args:
        args: The arguments of the op.
        shape: Shape of its result on a rank.
        itemsize: Bytes per element.
        axes: The mesh axes of the group.
        model: Predicts seconds.
    """
    redistribution = Redistribution.of_args(args)
    numbering = redistribution.numbering
    sizes, held, read = numbering.sizes, numbering.held, numbering.read
    if not sizes:
        return model.point_to_point(halo_bytes(args, shape, itemsize), axes)
    shares = (
        math.prod(n for axis, n in enumerate(sizes) if axis not in cut) for cut in (held, read)
    )
    moved = redistribution_messages(
        redistribution.size, redistribution.block, redistribution.outputs_block, *shares
    )
    row = math.prod(size for dim, size in enumerate(shape) if dim != args.get("dim")) * itemsize
    return model.point_to_point(moved.elements * row, axes, moved.messages)


def halo_bytes(args: Mapping[str, object], shape: Sequence[int], itemsize: int) -> int:
    """Returns the bytes that the busiest member of a `comm.redistribute` gets from others.

    Args:
        args: The arguments of the op.
        shape: Shape of its result on a rank.
        itemsize: Bytes per element.
    """
    redistribution = Redistribution.of_args(args)
    rest = math.prod(size for dim, size in enumerate(shape) if dim != args.get("dim"))
    return redistribution.most_received() * rest * itemsize
