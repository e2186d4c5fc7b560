"""Process groups as arrays: which list each rank is in, and at which position.

Everything that the proof asks about all ranks is answered with these arrays at once, never rank
by rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from autopar.ir.expr.arrays import Ints
from autopar.mapping.groups import RankLists


@dataclass(frozen=True, eq=False)
class Membership:
    """One process group.

    Attributes:
        name: Name of the group.
        lists: Its lists of ranks.
        list_of: Number of the list that each rank is in; -1 for none.
        position: Place of each rank in its list; 0 for ranks in none.
        size: Length of each rank's list; 1 for ranks in none.
        first: First rank of each rank's list; the rank itself for ranks in none.
    """

    name: str
    lists: RankLists
    list_of: Ints
    position: Ints
    size: Ints
    first: Ints


def membership(name: str, lists: RankLists, world: int) -> tuple[Membership, list[str]]:
    """Returns a group as arrays and what is wrong with it."""
    members = np.fromiter(chain.from_iterable(lists), np.int64)
    lengths = np.fromiter(map(len, lists), np.int64)
    problems = _problems(name, members, lengths, world)
    if problems:
        nobody = np.full(world, -1, np.int64)
        return Membership(name, lists, nobody, nobody, nobody, nobody), problems
    starts = np.cumsum(lengths) - lengths
    arrays = [np.full(world, -1), np.zeros(world), np.ones(world), np.arange(world)]
    list_of, position, size, first = (array.astype(np.int64) for array in arrays)
    list_of[members] = np.repeat(np.arange(len(lists)), lengths)
    position[members] = np.arange(len(members)) - np.repeat(starts, lengths)
    size[members] = np.repeat(lengths, lengths)
    first[members] = np.repeat(members[starts], lengths)
    return Membership(name, lists, list_of, position, size, first), []


def _problems(name: str, members: Ints, lengths: Ints, world: int) -> list[str]:
    if not lengths.all():
        return [f"group {name!r} has an empty list"]
    if outside := np.unique(members[(members < 0) | (members >= world)]).tolist():
        return [f"group {name!r} names {rank_text(outside)}, but there are only {world} ranks"]
    twice = np.flatnonzero(np.bincount(members, minlength=world) > 1).tolist()
    return [f"group {name!r} holds {rank_text(twice)} more than once"] if twice else []


def at_ranks(values: Ints, ranks: Ints) -> Ints:
    """Returns the values of these ranks; a constant, an array of one element, stays one."""
    return values if len(values) == 1 else values[ranks]


def rank_text(ranks: Sequence[int]) -> str:
    """Returns ascending ranks as text: `rank 3`, `ranks 0-3, 8`; long lists are cut short."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    shown = ", ".join(parts[:8]) + (f", ... ({len(ranks)} in all)" if len(parts) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def ranks_do(ranks: Sequence[int], singular: str, plural: str) -> str:
    """Returns who does something: `rank 3 waits`, `ranks 0-3 wait`."""
    return f"{rank_text(ranks)} {singular if len(ranks) == 1 else plural}"
