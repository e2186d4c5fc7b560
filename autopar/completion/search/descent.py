"""Descent: a plan is made faster along few mesh axes at a time, while the others stay as they are.

On three axes there are hundreds of ways to compute a convolution, and to compare them with those of
its neighbours takes the third power of that. Along one axis there are few. What is found so is the
best plan among all that differ from it along one axis, or along as many as the work is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from autopar.completion.problem.op_strategies import Choice
from autopar.completion.propagate.local_search import GAIN
from autopar.completion.search.found import Found
from autopar.completion.search.network.candidates import Around


def descend(
    axes: Sequence[str], start: Sequence[Choice], best_around: Callable[[Around], Found | None]
) -> Iterator[Found]:
    """Yields the plans on the way down from one, each no slower than those before.

    Args:
        axes: The mesh axes.
        start: The choices of the plan to begin with.
        best_around: Returns the best plan among those that have something in common; None where
            the search is to stop.
    """
    for count in range(1, len(axes)):
        groups, turn, idle = list(combinations(axes, count)), 0, 0
        seconds = math.inf
        while idle < len(groups):
            plan = best_around(Around(start, groups[turn % len(groups)]))
            if plan is None:
                return
            yield plan
            idle = 0 if plan.seconds < seconds * (1 - GAIN) else idle + 1
            seconds, start, turn = plan.seconds, plan.solution.choices, turn + 1
