"""Ways: which forward ops are computed again, and which values leave and come back."""

from __future__ import annotations

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
