"""Roll: iterations that do the same become one op.

    %total.s1 = aten.add.Tensor(self=%total.first, other=...) plan(iteration="head 1")
    %total.s2 = aten.add.Tensor(self=%total.s1, other=...) plan(iteration="head 2")
    ...

    %total = repeat(body="head", trip=7, index=$head, carried=[%total.first], invariant=[...])

What decides about time and memory sees all iterations, each as it is. What is decided may tell them
apart; those that still do the same, one right behind the other, are rolled in the end. So a rank's
program is as large however many parts there are, and code for an iteration is generated once.

An iteration may read what the one before has made, and what all of them read is the same. Numbers
that differ, as where a part begins, become expressions of the iteration (`progress`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from autopar.ir import emitted
from autopar.ir.iterations import Iteration, iteration_of
from autopar.ir.memory.storage import Storage
from autopar.ir.program import Function, Op, Program
from autopar.ir.used_sizes import declared_sizes
from autopar.partition.roll.alike import Alike, alike
from autopar.partition.roll.body import rolled

__all__ = ["Roll"]

_LEAST = 2
"""Iterations that are worth an op of their own."""


@dataclass(frozen=True)
class Roll:
    """Replaces iterations that are alike by one op, in all functions of a rank's program."""

    name: ClassVar[str] = "roll"

    def __call__(self, program: Program) -> Program:
        """Returns the program with loops."""
        rolling = _Rolling(program)
        for name in program.functions:
            rolling.roll(name)
        return rolling.program


class _Rolling:
    """A program while its loops are rolled.

    Args:
        program: The program.

    Attributes:
        program: The same with the loops that have been rolled.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        # What users call a dimension, they may call a module, too.
        self._open = {size.name for size in declared_sizes(program)}

    def roll(self, name: str) -> None:
        """Rolls the loops of a function, and then those of their bodies."""
        function = self.program.functions[name]
        loops = {loop.segments[0].start: loop for loop in self._loops(function)}
        if not loops:
            return
        storage = Storage(self.program, function)
        ops: list[Op] = []
        bodies: list[str] = []
        at = 0
        while at < len(function.ops):
            if at in loops:
                op, body = rolled(function, storage, loops[at])
                self._put(body)
                bodies.append(body.name)
                ops.append(op)
                at = loops[at].segments[-1].stop
            else:
                ops.append(function.ops[at])
                at += 1
        made = (name for op in ops for name in op.results)
        used = dict.fromkeys((*function.inputs, *made))
        values = {each: function.values[each] for each in used}
        self._put(replace(function, ops=tuple(ops), values=values))
        for each in bodies:
            self.roll(each)

    def _put(self, function: Function) -> None:
        functions = {**self.program.functions, function.name: function}
        self.program = replace(self.program, functions=functions)

    def _loops(self, function: Function) -> Iterator[Alike]:
        """Yields the iterations of a function that are alike, as they are one behind the other."""
        taken = {*self.program.functions, *self._open}
        for segments in _neighbours(function.ops):
            number = iteration_of(function.ops[segments[0].start])
            assert number is not None
            name = emitted.unused(number.loop, taken)
            # The first one makes what the others add to, and the last one what is left.
            count = len(segments)
            for first, last in ((0, count), (1, count), (0, count - 1), (1, count - 1)):
                few = last - first < _LEAST
                found = None if few else alike(function, segments[first:last], name)
                if found is not None:
                    taken.add(name)
                    yield found
                    break


def _neighbours(ops: Sequence[Op]) -> list[list[range]]:
    """Returns the positions of ops of iterations, those of a loop together."""
    found: list[list[range]] = []
    before: Iteration | None = None
    for at, op in enumerate(ops):
        now = iteration_of(op)
        if now is not None and now == before:
            found[-1][-1] = range(found[-1][-1].start, at + 1)
        elif now is not None and before == Iteration(now.loop, now.number - 1):
            found[-1].append(range(at, at + 1))
        elif now is not None:
            found.append([range(at, at + 1)])
        before = now
    return found
