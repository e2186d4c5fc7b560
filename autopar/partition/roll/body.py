"""What an iteration does, as a function, and the op that repeats it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autopar.ir import emitted
from autopar.ir.iterations import without_outermost
from autopar.ir.memory.accumulating import may_overwrite
from autopar.ir.memory.storage import Storage
from autopar.ir.memory.updates import overwritten
from autopar.ir.program import REPEAT, Arg, Function, Op, Ref, on_mesh
from autopar.ir.unroll import iteration_name
from autopar.partition.roll.alike import Alike, Carried, Place, Read


def rolled(function: Function, storage: Storage, loop: Alike) -> tuple[Op, Function]:
    """Returns the op that stands for iterations, and what it repeats.

    Args:
        function: The function that they are part of.
        storage: Which of its values share memory.
        loop: The iterations.
    """
    writer = _BodyWriter(function, loop)
    given_away = [each for each in loop.carried if _is_given_away(each, loop, function, storage)]
    body = writer.body(given_away)
    args: tuple[tuple[str, Arg], ...] = (
        ("body", body.name),
        ("trip", len(loop.segments)),
        ("index", loop.index),
        ("loop", loop.loop),
        ("carried", _refs(each.first for each in loop.carried)),
        ("invariant", _refs(writer.invariant)),
    )
    first = loop.steps[0].op
    phases = {step.op.phase for step in loop.steps}
    phase = first.phase if len(phases) == 1 else "backward"
    op = replace(first, kind=REPEAT, args=args, results=tuple(loop.left), phase=phase)
    return on_mesh(replace(op, plan=())), body


def _refs(names: Iterable[str]) -> tuple[Ref, ...]:
    return tuple(map(Ref, names))


def _is_given_away(carried: Carried, loop: Alike, function: Function, storage: Storage) -> bool:
    """Whether what is carried is written over what the iteration before has left.

    Then nobody else reads that, nor what the first iteration is given: no op behind, and none in
    this iteration or a later one, to which it may have been handed as a view.
    """
    (at, _), first = carried.place, carried.first
    if carried not in loop.steps[at].reads:
        return False
    read_twice = sum(each.first == first for each in loop.carried) > 1
    ops = [(segment.start + at, function.ops[segment.start + at]) for segment in loop.segments]
    before = [first, *(op.results[0] for _, op in ops[:-1])]
    written = [may_overwrite(op) and overwritten(place, op, function, storage) for place, op in ops]
    return written == before and not read_twice


class _BodyWriter:
    """Writes what is repeated.

    Args:
        function: The function that the iterations are part of.
        loop: The iterations.

    Attributes:
        invariant: The names of what is the same in all iterations.
    """

    def __init__(self, function: Function, loop: Alike) -> None:
        self._function, self._loop = function, loop
        reads = [read for step in loop.steps for read in step.reads]
        self.invariant = tuple(dict.fromkeys(read for read in reads if isinstance(read, str)))
        self._values = {name: function.values[name] for name in self.invariant}
        self._made: dict[Place, str] = {}
        left = {each.place: name for each, name in zip(loop.carried, loop.left, strict=True)}
        for at, step in enumerate(loop.steps):
            for number, name in enumerate(step.op.results):
                place = Place(at, number)
                new = f"{left[place]}.after" if place in left else self._base(name)
                self._made[place] = self._added(name, new)
        self._before = {
            each: self._added(each.first, f"{left[each.place]}.before") for each in loop.carried
        }

    def body(self, given_away: Iterable[Carried]) -> Function:
        """Returns it as a function.

        Args:
            given_away: What is carried that it writes over.
        """
        ops = []
        for at, (op, reads) in enumerate(self._loop.steps):
            results = tuple(self._made[Place(at, number)] for number in range(len(op.results)))
            op = without_outermost(replace(op, results=results))
            ops.append(op.with_operands([self._name(read) for read in reads]))
        return Function(
            self._loop.index.name,
            (*self._before.values(), *self.invariant),
            tuple(self._made[each.place] for each in self._loop.carried),
            self._values,
            tuple(ops),
            tuple((self._made[each.place], self._before[each]) for each in given_away),
        )

    def _name(self, read: Read) -> str:
        """Returns how an operand is called."""
        if isinstance(read, str):
            return read
        return self._made[read] if isinstance(read, Place) else self._before[read]

    def _base(self, name: str) -> str:
        """Returns how a value of the first iteration is called in all of them."""
        number = self._loop.index.least
        return name.removesuffix(iteration_name("", number, self._loop.loop))

    def _added(self, like: str, name: str) -> str:
        """Adds a value like one of the function; returns its name."""
        name = emitted.unused(name, self._values)
        self._values[name] = replace(self._function.values[like], name=name)
        return name
