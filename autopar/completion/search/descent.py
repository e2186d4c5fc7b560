"""Descent: a plan is made faster along few mesh axes at a time, while the others stay as they are.

On three axes there are hundreds of ways to compute a convolution, and to compare them with those of
its neighbours takes the third power of that. Along one axis there are few. What is found so is the
best plan among all that differ from it along one axis, or along as many as the work is worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from autopar.completion.problem.op_strategies import Choice
from autopar.completion.propagate.local_search import GAIN
from autopar.completion.search.found import Found
from autopar.completion.search.network.candidates import Around

if TYPE_CHECKING:
    from autopar.completion.search.fastest import Search


def descend(search: Search, start: Sequence[Choice]) -> Iterator[Found]:
    """Yields the plans on the way down from one, each no slower than those before.

    Args:
        search: Of the program; it says when to stop.
        start: The choices of the plan to begin with.
    """
    axes = search.graph.space.axes
    for count in range(1, len(axes)):
        groups, at, idle = list(combinations(axes, count)), 0, 0
        seconds = math.inf
        while idle < len(groups):
            near = search.around(Around(start, groups[at % len(groups)]))
            if search.watch.is_late or not near.is_affordable:
                return
            found = near.best_around()
            yield found
            idle = 0 if found.seconds < seconds * (1 - GAIN) else idle + 1
            seconds, start, at = found.seconds, found.solution.choices, at + 1
