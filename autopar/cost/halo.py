"""The halo: what of its windows a rank doesn't hold, in bytes and seconds.

A halo comes from neighbours, however many there are, so it costs one message's latency and what
the busiest rank gets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autopar.ir.window import Redistribution


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
