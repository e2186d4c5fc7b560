"""What stands before the kind of an op that isn't ours and doesn't just map tensors to tensors.

autopar.seeded.aten.poisson.default        runs with torch's generator set; takes `seed`, the
                                           program's seed, and `number`, its own
autopar.functional.mylib.update_.default   works on copies of what it writes to, and returns
                                           their new contents behind its own results
"""

from __future__ import annotations

SEEDED = "autopar.seeded."
FUNCTIONAL = "autopar.functional."


def bare_kind(kind: str) -> str:
    """Returns the kind of the op itself."""
    return kind.removeprefix(SEEDED).removeprefix(FUNCTIONAL)
