"""Alike: whether some iterations do the same, each with what the one before has made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from autopar.ir.expr.expression import Size
from autopar.ir.iterations import iteration_of
from autopar.ir.memory.transfers import ENDED, STARTED, is_on_host
from autopar.ir.program import CALLS, Function, Op, fixed_of
from autopar.partition.roll.progress import NotAlikeError, progress


class Place(NamedTuple):
    """A result of an iteration.

    Attributes:
        op: The op's position in the iteration.
        result: Which of its results it is.
    """

    op: int
    result: int


class Carried(NamedTuple):
    """What an iteration has of the one before.

    Attributes:
        place: Where that has made it.
        first: What the first iteration has.
    """

    place: Place
    first: str


Read: TypeAlias = Place | Carried | str
"""What an operand is: made in the same iteration, or by the one before, or the same in all."""


class Step(NamedTuple):
    """What an op does in all iterations.

    Attributes:
        op: The op of the first one, with arguments that depend on the number.
        reads: What its operands are.
    """

    op: Op
    reads: Sequence[Read]


@dataclass(frozen=True)
class Alike:
    """Iterations that are alike.

    Attributes:
        loop: The name of their loop.
        index: The number of an iteration.
        segments: The positions of each one's ops.
        steps: What one does.
        carried: What is carried, each once.
        left: The names of what the last one leaves of that, in the same order.
    """

    loop: str
    index: Size
    segments: Sequence[range]
    steps: Sequence[Step]
    carried: Sequence[Carried]
    left: Sequence[str]


def alike(function: Function, segments: Sequence[range], name: str) -> Alike | None:
    """Returns iterations as those that are alike; None if they aren't.

    Args:
        function: The function.
        segments: The positions of each one's ops.
        name: What their number is called.
    """
    iterations = [function.ops[each.start : each.stop] for each in segments]
    number = iteration_of(iterations[0][0])
    if number is None or not _look_alike(function, iterations):
        return None
    first, last = number.number, number.number + len(segments) - 1
    index = Size(name, first, last, planned=first)
    try:
        steps = _Reading(iterations).steps(index)
    except NotAlikeError:
        return None
    reads = (read for step in steps for read in step.reads)
    carried = list(dict.fromkeys(read for read in reads if isinstance(read, Carried)))
    left = [iterations[-1][each.place.op].results[each.place.result] for each in carried]
    found = Alike(number.loop, index, segments, steps, carried, left)
    return found if _is_closed(function, found) else None


def _is_closed(function: Function, loop: Alike) -> bool:
    """Whether others read what the last iteration leaves for another one, and nothing else."""
    inside = range(loop.segments[0].start, loop.segments[-1].stop)
    made = {name for at in inside for name in function.ops[at].results}
    others = (op for at, op in enumerate(function.ops) if at not in inside)
    read = {*function.outputs, *(name for op in others for name in op.operands)}
    pairs = zip(loop.carried, loop.left, strict=True)
    fits = all(_type(function, each.first) == _type(function, name) for each, name in pairs)
    distinct = len({*loop.left}) == len(loop.left)
    return bool(loop.left) and fits and distinct and (read & made).issubset(loop.left)


def _look_alike(function: Function, iterations: Sequence[Sequence[Op]]) -> bool:
    """Whether ops at the same place in all iterations are of a kind, and of the same types."""
    first = iterations[0]
    if any(len(each) != len(first) or not all(map(_may_roll, each)) for each in iterations):
        return False
    if len({fixed_of(op.dist) for op in first}) > 1:
        return False
    wanted = [_looks(function, op) for op in first]
    return all([_looks(function, op) for op in each] == wanted for each in iterations[1:])


def _may_roll(op: Op) -> bool:
    """Whether an op may be in the body of a loop: what runs beside it may not."""
    return op.kind not in (*CALLS, *STARTED, *ENDED) and not is_on_host(op)


def _looks(function: Function, op: Op) -> object:
    types = [_type(function, name) for name in op.results]
    return op.kind, op.phase, op.stage, op.microbatch, op.dist, types


def _type(function: Function, name: str) -> object:
    value = function.values[name]
    return value.dtype, value.shape, value.dist


class _Reading:
    """What the ops of iterations read.

    Args:
        iterations: The ops of each.
    """

    def __init__(self, iterations: Sequence[Sequence[Op]]) -> None:
        self._iterations = iterations
        self._places = [
            {
                name: Place(at, number)
                for at, op in enumerate(ops)
                for number, name in enumerate(op.results)
            }
            for ops in iterations
        ]
        self._made = frozenset().union(*self._places)

    def steps(self, index: Size) -> list[Step]:
        """Returns what the ops do.

        Args:
            index: The number of an iteration.

        Raises:
            NotAlikeError: If they don't do the same.
        """
        return [self._step(ops, index) for ops in zip(*self._iterations, strict=True)]

    def _step(self, ops: Sequence[Op], index: Size) -> Step:
        first = ops[0]
        if len({(len(op.operands), tuple(name for name, _ in op.args)) for op in ops}) > 1:
            raise NotAlikeError
        reads = [self._read(names) for names in zip(*(op.operands for op in ops), strict=True)]
        unread = [op.with_operands([""] * len(reads)) for op in ops]
        args = {name: progress([op.arg(name) for op in unread], index) for name, _ in first.args}
        op = replace(first, args=tuple(args.items()))
        return Step(op.with_operands(first.operands), reads)

    def _read(self, names: Sequence[str]) -> Read:
        """Returns what an operand is that has these names in the iterations."""
        if names[0] not in self._made and len({*names}) == 1:
            return names[0]
        here = {places.get(name) for places, name in zip(self._places, names, strict=True)}
        place = here.pop()
        if place is not None and not here:
            return place
        before = {places.get(name) for places, name in zip(self._places, names[1:], strict=False)}
        place = before.pop()
        if place is None or before or names[0] in self._made:
            raise NotAlikeError
        return Carried(place, names[0])
