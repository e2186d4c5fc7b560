"""Order: the update goes from bucket to bucket, so that no state is needed longer than must be.

Optimizers update all parameters at once, one kind of op after another, or one parameter after
another. What reads the state of one bucket comes before what reads that of the next.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from autopar.ir.collectives import is_collective
from autopar.ir.program import Function, Program
from autopar.partition.offload.uses import UPDATE, Segment, owners, segments

BEFORE = -1
"""The turn of what needs no state."""


def by_owner(program: Program, names: Collection[str], later: Collection[str] = ()) -> Program:
    """Returns a program whose updates go from one parameter to the next.

    Args:
        program: A partitioned program.
        names: The stored inputs that wait in the host's memory.
        later: The labels of parameters that come behind all others.
    """
    main = program.main
    ops = list(main.ops)
    for segment in updates(main):
        turns = Turns(program, names, segment, later).turns
        for at, moved in zip(segment, sorted(segment, key=turns.__getitem__), strict=True):
            ops[at] = main.ops[moved]
    return program.with_main(replace(main, ops=tuple(ops)))


def together(function: Function, made: Collection[str]) -> Function:
    """Returns a function with some updates, and what follows from them, in its last segment.

    Args:
        function: The function.
        made: Results of their ops.
    """
    *earlier, last = updates(function)
    known, moved = set(made), list[int]()
    for at in (at for segment in earlier for at in segment):
        op = function.ops[at]
        if not known.isdisjoint((*op.results, *op.operands)):
            known.update(op.results)
            moved.append(at)
    there = frozenset(moved)
    kept = [at for at in range(len(function.ops)) if at not in there]
    start = kept.index(last[0])
    order = (*kept[:start], *moved, *kept[start:])
    return replace(function, ops=tuple(function.ops[at] for at in order))


def updates(function: Function) -> list[Segment]:
    """Returns the segments of a function in which parameters are updated."""
    return [each for each in segments(function) if function.ops[each[0]].phase == UPDATE]


class Turns:
    """In which turn each op of an update runs: that of the last parameter that it waits for.

    What needs none waits for its first reader, as the scaled gradient of a parameter, if it needn't
    communicate.

    Args:
        program: A partitioned program.
        names: The stored inputs that wait in the host's memory.
        segment: The ops.
        later: The labels of parameters whose turns come behind those of all others.

    Attributes:
        turns: By position, the turn of each op.
        numbers: By the label of a parameter, its turn.
    """

    def __init__(
        self,
        program: Program,
        names: Collection[str],
        segment: Segment,
        later: Collection[str] = (),
    ) -> None:
        self.function: Function = program.main
        self.segment = segment
        self.owners = owners(program, names)
        self.later = later
        self.numbers: dict[str, int] = {}
        self.turns: dict[int, int] = {}
        self._forwards()
        self._backwards()

    def _forwards(self) -> None:
        made: dict[str, int] = {}
        for at in self.segment:
            op = self.function.ops[at]
            waits = [made.get(name, BEFORE) for name in op.operands]
            waits += [self._number(name) for name in op.operands if name in self.owners]
            self.turns[at] = max(waits, default=BEFORE)
            made.update(dict.fromkeys(op.results, self.turns[at]))

    def _number(self, name: str) -> int:
        owner = self.owners[name]
        ahead = len(self.owners) if owner in self.later else 0
        return self.numbers.setdefault(owner, ahead + len(self.numbers))

    def _backwards(self) -> None:
        first: dict[str, int] = {}
        for at in reversed(self.segment):
            op = self.function.ops[at]
            readers = [first[name] for name in op.results if name in first]
            if self.turns[at] == BEFORE and readers and not is_collective(op.kind):
                self.turns[at] = min(readers)
            for name in op.operands:
                first[name] = min(first.get(name, self.turns[at]), self.turns[at])
