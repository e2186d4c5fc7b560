"""Ways: which ops are computed again, which values leave and come back, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Way(NamedTuple):
    """What is computed again, and what leaves and comes back.

    Attributes:
        repeated: The forward ops whose results the backward pass reads from copies.
        anew: Those of them whose copies don't stay.
        offloaded: The values that wait in the host's memory.
    """

    repeated: frozenset[int] = frozenset()
    anew: frozenset[int] = frozenset()
    offloaded: frozenset[int] = frozenset()


NOTHING = Way()
"""Nothing is computed again, and all stays."""


@dataclass(frozen=True, slots=True)
class Point:
    """A plan and what it costs.

    Attributes:
        way: What is computed again, and what leaves and comes back.
        added_seconds: What this adds to a step.
        peak_bytes: The most bytes that any rank holds at once.
    """

    way: Way
    added_seconds: float
    peak_bytes: int
