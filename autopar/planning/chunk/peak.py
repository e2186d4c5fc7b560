"""Peak: what could be cut where a program holds most.

What is kept for the backward pass can be computed again. So what counts is what a program holds at
once without that: its *floor*. A value that takes much where the floor is highest is cut, and with
it those that are like it: of the same op and shape, in layers that are alike. A gradient follows
from the value of the forward pass that it is of.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from autopar.cost import MemoryTimeline
from autopar.cost.memory.buffers import SAVED, TEMPORARIES, Buffer
from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import MICROBATCH, Function, Op

_LEAST = 0.02
"""What is cut takes at least this part of the floor."""

_NUMBERS = re.compile(r"\d+")

Alike = tuple[str, str, tuple[IntExpr, ...]]
"""The op, the name without its numbers, and the shape of values that are alike."""


@dataclass(frozen=True)
class Floor:
    """What a rank holds at once, besides what only waits for the backward pass.

    Attributes:
        nbytes: The most that it holds.
        buffers: What takes that.
    """

    nbytes: int
    buffers: Sequence[Buffer]

    @classmethod
    def of(cls, timeline: MemoryTimeline) -> Floor:
        """Returns it.

        Args:
            timeline: The memory of a rank over time.
        """
        lifetimes, changes = timeline.lifetimes, [0] * (len(timeline.at_bytes) + 1)
        used: dict[int, set[int]] = defaultdict(set)
        for at, op in enumerate(lifetimes.ops):
            for name in op.operands:
                for index in lifetimes.buffers_of.get(name, ()):
                    used[index].add(at)
        for index, buffer in enumerate(lifetimes.buffers):
            if buffer.kind == SAVED:
                used[index].add(buffer.first)
                for begin, end in _idle(buffer, used[index]):
                    changes[begin] -= buffer.nbytes
                    changes[end] += buffer.nbytes
        floors = [*map(sum, zip(timeline.at_bytes, accumulate(changes[:-1]), strict=True))]
        if not floors:
            return cls(timeline.peak_bytes, ())
        at = max(range(len(floors)), key=floors.__getitem__)
        there = [
            buffer
            for index, buffer in enumerate(lifetimes.buffers)
            if buffer.first <= at <= buffer.last and (buffer.kind != SAVED or at in used[index])
        ]
        return cls(floors[at], there)


def _idle(buffer: Buffer, used: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yields from which op to which one, exclusive, a buffer only waits."""
    for before, after in pairwise(sorted(used)):
        if after > before + 1:
            yield before + 1, after


def largest(main: Function, floor: Floor) -> list[tuple[str, ...]]:
    """Returns the values of a serial program that take most in a floor, those alike together.

    Args:
        main: The serial program, of which what is cut already is in loops.
        floor: That of a rank that runs its part.

    Returns:
        Values of the forward pass that nothing cuts yet; the first take most.
    """
    makers = main.producers()
    taken: dict[Alike, int] = defaultdict(int)
    for buffer in floor.buffers:
        if buffer.kind not in (SAVED, TEMPORARIES):
            continue
        name = _forward(_serial(buffer.name, makers), main, makers)
        if name is not None:
            taken[_alike(name, main, makers)] += buffer.nbytes
    members: dict[Alike, list[str]] = defaultdict(list)
    for op in main.ops:
        if op.phase == "forward" and not _is_cut(op):
            for name in op.results:
                members[_alike(name, main, makers)].append(name)
    large = [each for each in taken if taken[each] >= _LEAST * floor.nbytes]
    return [tuple(members[each]) for each in sorted(large, key=taken.__getitem__, reverse=True)]


def apart(main: Function, names: Sequence[str]) -> tuple[str, ...]:
    """Returns those of some values that what is cut already doesn't reach.

    Args:
        main: A serial program.
        names: The values.
    """
    makers = main.producers()
    made = ((name, makers.get(name)) for name in names)
    return tuple(name for name, op in made if op is not None and not _is_cut(op))


def _is_cut(op: Op) -> bool:
    """Whether an op is in a loop already, but for that over microbatches."""
    return any(loop != MICROBATCH for loop, _ in op.loops)


def _serial(name: str, makers: Mapping[str, Op]) -> str:
    """Returns the value of a serial program of which a rank's value is a part."""
    while name not in makers and "." in name:
        name = name.rpartition(".")[0]
    return name


def _forward(name: str, main: Function, makers: Mapping[str, Op]) -> str | None:
    """Returns a value, or the nearest of the forward pass of as many elements behind it."""
    if name not in makers:
        return None
    shape, waiting, seen = main.values[name].shape, [name], {name}
    for each in waiting:
        op = makers[each]
        if _is_cut(op):
            continue
        if op.phase == "forward":
            return each
        for operand in _alike_operands(op, shape, main):
            if operand in makers and operand not in seen:
                seen.add(operand)
                waiting.append(operand)
    return None


def _alike_operands(op: Op, shape: tuple[IntExpr, ...], main: Function) -> Iterator[str]:
    """Yields operands of a shape, or of that in another order."""
    sizes = sorted(map(str, shape))
    return (name for name in op.operands if sorted(map(str, main.values[name].shape)) == sizes)


def _alike(name: str, main: Function, makers: Mapping[str, Op]) -> Alike:
    # Numbers at the end only tell values of one name apart, by how many there are before.
    base = _NUMBERS.sub("*", name.rstrip("0123456789").rstrip("_"))
    return makers[name].kind, base, main.values[name].shape
