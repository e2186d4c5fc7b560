"""Places: where the transfers of buckets start, and where they are awaited.

One bucket is in use and one under way, as with what `Prefetch` gathers: the next one starts to come
when the one before it is needed, and not until the one before that is gone, to the host if it was
written. So both directions of the link and the device work at once, and a device holds two buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.partition.offload.uses import Segment, Use


@dataclass(frozen=True)
class Placed:
    """Where a bucket comes and goes, each before the op at a position.

    Attributes:
        use: The bucket.
        start: Where it starts to come; it has come where it is needed first.
        gone: Where it has gone back, if it was written; it starts to go behind its last op.
    """

    use: Use
    start: int
    gone: int

    @property
    def left(self) -> int:
        """The op before which the device no longer holds it."""
        return self.gone if self.use.renewed else self.use.last + 1


def placed(uses: Sequence[Use], segment: Segment) -> list[Placed]:
    """Returns where the buckets of a segment come and go.

    Args:
        uses: The buckets, in the order of their first readers.
        segment: The ops.
    """
    starts = [_start(uses, at, segment) for at in range(len(uses))]
    return [
        Placed(use, start, max(use.last + 1, next_but_one))
        for use, start, next_but_one in zip(
            uses, starts, (*starts[2:], *[segment[-1] + 1] * 2), strict=False
        )
    ]


def _start(uses: Sequence[Use], at: int, segment: Segment) -> int:
    """Returns before which op a bucket starts to come."""
    start = segment[0]
    if at >= 1:
        start = uses[at - 1].first
    if at >= 2:
        start = max(start, uses[at - 2].last + 1)
    return min(start, uses[at].first)
