"""Rank classes: ranks that provably do the same things at the same time.

Two ranks are in one class if they run the same program and, in each group, meet ranks of the same
classes. That is the coarsest equitable partition of the ranks, found by refining the partition by
program until nothing changes. All ranks of a class are always at the same place of their
program, so a simulation that moves whole classes finds a deadlock exactly if there is one. Its
work depends on the number of classes: one for a single program, one per stage for a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.ir.expr.arrays import Ints
from autopar.mapping.membership import Membership


@dataclass(frozen=True, eq=False)
class RankClass:
    """Ranks that move together.

    Attributes:
        number: Position among the classes.
        program: Index of the program that they run.
        ranks: The ranks, ascending.
        partners: For each group, the numbers of the classes (its own among them) that its ranks'
            lists consist of.
    """

    number: int
    program: int
    ranks: Ints
    partners: dict[str, tuple[int, ...]]


def rank_classes(programs: Ints, groups: Sequence[Membership]) -> tuple[RankClass, ...]:
    """Returns the classes of all ranks.

    Args:
        programs: Index of each rank's program.
        groups: Every group of the deployment.
    """
    classes = _numbered([programs])
    while True:
        met = [_classes_met(group, classes) for group in groups]
        finer = _numbered([classes, *(ids for ids, _ in met)])
        if finer.max() == classes.max():
            break
        classes = finer
    result = []
    for number in range(int(classes.max()) + 1):
        ranks = np.flatnonzero(classes == number)
        partners = {
            group.name: sets[ids[ranks[0]]] for group, (ids, sets) in zip(groups, met, strict=True)
        }
        result.append(RankClass(number, int(programs[ranks[0]]), ranks, partners))
    return tuple(result)


def _numbered(keys: Iterable[Ints]) -> Ints:
    """Returns a number per rank such that ranks have equal numbers iff all their keys are equal."""
    columns = list(keys)
    if all(column.min() == column.max() for column in columns):
        return np.zeros(len(columns[0]), np.int64)
    _, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64)


def _classes_met(group: Membership, classes: Ints) -> tuple[Ints, list[tuple[int, ...]]]:
    """Returns, per rank, the number of the set of classes in its list, and those sets.

    Ranks in no list have the empty set.
    """
    if classes.max() == 0 and group.list_of.min() >= 0:
        return np.zeros(len(classes), np.int64), [(0,)]
    sets: dict[tuple[int, ...], int] = {}
    of_list = []
    for members in group.lists:
        met = tuple(np.unique(classes[list(members)]).tolist())
        of_list.append(sets.setdefault(met, len(sets)))
    of_list.append(sets.setdefault((), len(sets)))  # list_of is -1 for ranks in no list
    return np.asarray(of_list, np.int64)[group.list_of], list(sets)
