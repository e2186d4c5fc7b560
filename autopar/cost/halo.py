"""The halo: what of its windows a rank doesn't hold, in bytes and seconds.

A halo comes from neighbours, however many there are, so it costs one message's latency and what
the busiest rank gets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autopar.cost.collectives import CommunicationModel
from autopar.cost.reblock import reblock_exchange
from autopar.ir.distribution import consumed, window_axes, windows
from autopar.ir.program import DTYPE_BYTES, OpDist
from autopar.ir.rule import Rule, TensorType
from autopar.ir.window import Redistribution


def halo_seconds(
    rule: Rule, dist: OpDist, operands: Sequence[TensorType], model: CommunicationModel
) -> float:
    """Returns the seconds to fetch what the windows of a choice cover beyond a rank's blocks.

    Args:
        rule: The op's rule.
        dist: The choice.
        operands: Their global types.
        model: Predicts seconds.
    """
    under = rule.under(dist.body)
    if not under.windows:
        return 0.0
    total = 0.0
    for position, tensor in enumerate(operands):
        for factor, way in windows(rule, dist, position).items():
            axes = window_axes(under, dist, factor)
            if not axes:
                continue
            layout = consumed(rule, dist, position)
            held = math.prod(
                -(-sub.size // dist.mesh.axes_size(sub.axes)) for dim in layout.dims for sub in dim
            )
            row = held // max(1, way.block) * DTYPE_BYTES[tensor.dtype]
            total += exchange_seconds(way.most_received() * row, axes, model)
    return total


def exchange_seconds(nbytes: float, axes: Sequence[str], model: CommunicationModel) -> float:
    """Returns the seconds in which the busiest rank gets this many bytes from its neighbours."""
    return model.point_to_point(nbytes, axes) + model.local_copy(nbytes) if nbytes else 0.0


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
    exchange = Redistribution.of_args(args)
    sizes, held, read = exchange.numbering.sizes, exchange.numbering.held, exchange.numbering.read
    if not sizes:
        return model.point_to_point(halo_bytes(args, shape, itemsize), axes)
    shares = (math.prod(n for at, n in enumerate(sizes) if at not in cut) for cut in (held, read))
    moved = reblock_exchange(exchange.size, exchange.block, exchange.outputs_block, *shares)
    row = math.prod(size for at, size in enumerate(shape) if at != args.get("dim")) * itemsize
    return model.point_to_point(moved.elements * row, axes, moved.messages)


def halo_bytes(args: Mapping[str, object], shape: Sequence[int], itemsize: int) -> int:
    """Returns the bytes that the busiest member of a `comm.redistribute` gets from others.

    Args:
        args: The arguments of the op.
        shape: Shape of its result on a rank.
        itemsize: Bytes per element.
    """
    exchange = Redistribution.of_args(args)
    rest = math.prod(size for at, size in enumerate(shape) if at != args.get("dim"))
    return exchange.most_received() * rest * itemsize
