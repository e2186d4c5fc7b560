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


def by_owner(program: Program, names: Collection[str]) -> Program:
    """Returns a program whose updates go from one parameter to the next.

    Args:
        program: A partitioned program.
        names: The stored inputs that wait in the host's memory.
    """
    main = program.main
    updates = [each for each in segments(main) if main.ops[each[0]].phase == UPDATE]
    ops = list(main.ops)
    for segment in updates:
        turns = _Turns(program, names, segment).turns
        for at, moved in zip(segment, sorted(segment, key=turns.__getitem__), strict=True):
            ops[at] = main.ops[moved]
    return program.with_main(replace(main, ops=tuple(ops)))


class _Turns:
    """In which turn each op of an update runs: that of the last parameter that it waits for.

    What needs none waits for its first reader, as the scaled gradient of a parameter, if it needn't
    communicate.
    """

    def __init__(self, program: Program, names: Collection[str], segment: Segment) -> None:
        self.function: Function = program.main
        self.segment = segment
        self.owners = owners(program, names)
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
        return self.numbers.setdefault(self.owners[name], len(self.numbers))

    def _backwards(self) -> None:
        first: dict[str, int] = {}
        for at in reversed(self.segment):
            op = self.function.ops[at]
            readers = [first[name] for name in op.results if name in first]
            if self.turns[at] == BEFORE and readers and not is_collective(op.kind):
                self.turns[at] = min(readers)
            for name in op.operands:
                first[name] = min(first.get(name, self.turns[at]), self.turns[at])
