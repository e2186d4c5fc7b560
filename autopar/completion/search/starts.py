"""Starts: labels that stand for a plan found otherwise, as that of a preset.

What messages leave open can be far from the best where layers are tied by many shared values; a
preset is seldom the best, but of one piece, so that improving it leads to better labels.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.splits import Key
from autopar.completion.search.network.candidates import Candidates
from autopar.completion.search.network.model import Model
from autopar.completion.search.solvers.improve import solve_forest
from autopar.ir.dims import DimLayout, SubDim


def labels_of(model: Model, choices: Sequence[Choice]) -> list[int]:
    """Returns labels of a model in which ops are computed as in a plan.

    How values lie in between is solved: given all ops, the variables left have no cycles.

    Args:
        model: The model.
        choices: Per op; one that is no candidate counts as one that leaves the same, or as whole.
    """
    ops = [_label(*pair) for pair in zip(model.candidates, choices, strict=True)]
    between = range(len(ops), len(model.network.vectors))
    return solve_forest(model.network, [*ops, *(0 for _ in between)], between)


def _label(candidates: Candidates, choice: Choice) -> int:
    if candidates.every is not None:
        return candidates.instead[_label(candidates.every, choice)]
    ways = candidates.choices
    if choice in ways:
        return ways.index(choice)
    interface = choice.consumed, choice.produced
    for label, way in enumerate(ways):
        if (way.consumed, way.produced) == interface:
            return label
    splits, pending = _in_order(choice), choice.dist.pending
    for label, way in enumerate(ways):
        if way.dist.pending == pending and _in_order(way) == splits:
            return label
    alike = (label for label, way in enumerate(ways) if way.produced == choice.produced)
    return next(alike, 0)


def _in_order(choice: Choice) -> dict[Key, DimLayout]:
    """Returns how factors are split, but for the order of the axes of each sub-dimension.

    In which order axes split a batch makes no difference to a plan, and candidates have but one.
    """
    return {
        factor: tuple(SubDim(sub.size, tuple(sorted(sub.axes))) for sub in dim)
        for factor, dim in choice.splits.items.items()
    }
