"""Bodies: which ops of a loop may become one function, by the task that they are parts of.

A function is called as a whole: what it reads has to be there before, and what it makes is there
behind. So ops of a task are in one body unless something outside, that waits for some of them, is
waited for by others; those are a body of their own then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from autopar.ir.collectives import is_collective
from autopar.ir.fixed import Fixed
from autopar.ir.ops.loops import CARRY, CAT, LAST, SEED, STACK, TAKE, is_inside
from autopar.ir.program import MICROBATCH, Function, Op, fixed_of
from autopar.partition.pipeline.tasks import Task

BORDER = (TAKE, CARRY, SEED, CAT, STACK, LAST)
"""What hands values to iterations or takes them from there, and so knows which one it is."""


@dataclass(eq=False)
class Body:
    """Ops that become one function.

    Attributes:
        task: The task that they are parts of, of the first microbatch.
        number: How many bodies of the task come before.
        ops: Their positions.
        awaits: The bodies whose results it reads, also through others, as bits.
    """

    task: Task
    number: int = 0
    ops: list[int] = field(default_factory=list)
    awaits: int = 0


def bodies_of(main: Function, tasks: Sequence[Task | None]) -> list[Body]:
    """Returns the bodies of a function's loop, in the order of their first ops.

    Args:
        main: The function, partitioned.
        tasks: The task that each op is a part of; None if it is to be in no body.
    """
    return _Growing(main, tasks).bodies


class _Growing:
    """Puts op after op into bodies."""

    def __init__(self, main: Function, tasks: Sequence[Task | None]) -> None:
        self.bodies: list[Body] = []
        self._latest: dict[tuple[Task, Fixed], int] = {}
        self._made_in: dict[str, int] = {}
        self._needs: dict[str, int] = {}
        self._places = {name: fixed_of(main.values[name].dist) for name in main.inputs}
        for at, (op, task) in enumerate(zip(main.ops, tasks, strict=True)):
            made_in = {self._made_in[name] for name in op.operands if name in self._made_in}
            outside = 0
            for name in op.operands:
                outside |= self._needs.get(name, 0)
            if task is not None and _belongs(op) and not self._moves(op):
                number = self._body_for(task, op, made_in, outside)
                body = self.bodies[number]
                body.ops.append(at)
                body.awaits |= outside | _mask(made_in - {number})
                self._made_in.update(dict.fromkeys(op.results, number))
            else:
                self._needs.update(dict.fromkeys(op.results, outside | _mask(made_in)))
            self._places.update(dict.fromkeys(op.results, fixed_of(op.dist)))

    def _body_for(self, task: Task, op: Op, made_in: set[int], outside: int) -> int:
        """Returns the number of the body that an op may be in.

        Args:
            task: The task that it is a part of.
            op: The op.
            made_in: The bodies whose results it reads.
            outside: The bodies for which others wait that it reads of, as bits.
        """
        key = task, fixed_of(op.dist)
        latest = self._latest.get(key)
        if latest is not None and not self._waits(outside | _mask(made_in - {latest}), latest):
            return latest
        number = sum(body.task == task for body in self.bodies)
        self._latest[key] = len(self.bodies)
        self.bodies.append(Body(task, number))
        return self._latest[key]

    def _moves(self, op: Op) -> bool:
        """Returns whether an op moves something between slices: only one of its ends is there."""
        places = {self._places[name] for name in op.operands}
        return is_collective(op.kind) and places != {fixed_of(op.dist)}

    def _waits(self, needs: int, body: int) -> bool:
        """Returns whether some of what is needed waits for a body."""
        new = needs & ~self.bodies[body].awaits
        seen = 0
        while new:
            seen |= new
            if seen >> body & 1:
                return True
            found = 0
            for number in _bits(new):
                found |= self.bodies[number].awaits
            new = found & ~seen
        return False


def _mask(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)


def _bits(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _belongs(op: Op) -> bool:
    """Returns whether an op may be in a function that doesn't know which iteration it runs in."""
    return is_inside(op, MICROBATCH) and op.kind not in BORDER
