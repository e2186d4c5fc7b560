"""Shared: what ranks of several kinds compute, where those of the first kind decide for all.

On a run of a pipeline's axis ranks compute the same, but for what one of them alone does, as to
send a block. A copy is made where it is read first. So what several kinds read is computed again,
or leaves for the host's memory, only if all that reads it is run by all of them: others wouldn't
have the copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autopar.ir.collectives import is_collective
from autopar.ir.program import Op

Results = tuple[str, ...]
Kinds = frozenset[int]


@dataclass(frozen=True)
class Shared:
    """What ranks of a kind don't decide.

    Attributes:
        unrepeated: The results of ops that they don't compute again.
        staying: The values that they don't send to the host's memory.
        follows: Whether others decide about anything that they compute.
    """

    unrepeated: frozenset[Results] = frozenset()
    staying: frozenset[str] = frozenset()
    follows: bool = False


def shared_ops(kinds: Sequence[Iterable[Op]]) -> list[Shared]:
    """Returns what ranks of each kind don't decide.

    Args:
        kinds: The ops of each kind.
    """
    ops: dict[Results, Op] = {}
    by: dict[Results, Kinds] = defaultdict(frozenset)
    for number, each in enumerate(kinds):
        for op in each:
            ops.setdefault(op.results, op)
            by[op.results] |= {number}
    if all(len(numbers) == 1 for numbers in by.values()):
        return [Shared()] * len(kinds)
    results_of = {name: results for results in ops for name in results}
    makers = {name: by[results] for name, results in results_of.items()}
    readers = _readers(ops.values(), by, makers)
    used = {name: Kinds().union(*(each for _, each in found)) for name, found in readers.items()}
    late: dict[Results, set[Kinds]] = defaultdict(set)
    unrepeated, staying = set[Results](), set[str]()
    for name, reading in readers.items():
        for op, numbers in reading:
            if op.phase == "backward":
                late[results_of[name]].add(numbers)
            if numbers != used[name]:
                staying.add(name)
                unrepeated.add(op.results)
    unrepeated.update(results for results, several in late.items() if len(several) > 1)
    found = []
    for at in range(len(kinds)):
        others = {each for each, numbers in by.items() if at in numbers and min(numbers) < at}
        theirs = {name for name, users in used.items() if min(users) < at}
        follows = any(
            ops[each].phase == "forward" and not is_collective(ops[each].kind) for each in others
        )
        found.append(Shared(frozenset(unrepeated | others), frozenset(staying | theirs), follows))
    return found


def _readers(
    ops: Iterable[Op], by: Mapping[Results, Kinds], makers: Mapping[str, Kinds]
) -> dict[str, list[tuple[Op, Kinds]]]:
    """Returns the ops that read each value, and the kinds of ranks that do so where it is made.

    What is sent is made by those who get it.
    """
    readers: dict[str, list[tuple[Op, Kinds]]] = defaultdict(list)
    for op in ops:
        for name in op.operands:
            numbers = by[op.results] & makers.get(name, Kinds())
            if numbers:
                readers[name].append((op, numbers))
    return readers
