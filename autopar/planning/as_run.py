"""As run: of plans that take about as long, the one that is the fastest once sums are joined.

Search prices one op after another. What small sums take falls when they travel together, which no
plan of a part of a program knows; so presets that come close are lowered too, and compared.
"""

from __future__ import annotations

from collections.abc import Callable

from autopar.completion.complete import Completed
from autopar.cost import Cluster
from autopar.cost.evaluation import evaluate
from autopar.ir.program import Program


def fastest_as_run(
    completed: Completed, lower: Callable[[Program], Program], cluster: Cluster
) -> Completed:
    """Returns a completed program or that of its rivals which takes the fewest serialized seconds.

    Args:
        completed: What search decided, which is taken if none is faster.
        lower: The passes from a completed program to that of a rank.
        cluster: Predicts seconds.
    """
    if not completed.rivals:
        return completed

    def seconds(each: Completed) -> float:
        return evaluate(lower(each.program), cluster).serialized_seconds

    return min((completed, *completed.rivals), key=seconds)
