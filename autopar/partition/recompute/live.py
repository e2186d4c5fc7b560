"""The memory of a replay that moves with the order of the steps.

Memory is there from the step that takes it to the last one that reads a value in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import add, sub
from typing import NamedTuple

from autopar.partition.recompute.replay import Step, ValueCopy
from autopar.partition.recompute.tape import Tape

Piece = tuple[int, int]
"""A piece of memory, and the number of the copy that takes it; -1 for the op itself."""


class Moving(NamedTuple):
    """Bytes of pieces that move.

    Attributes:
        during: What is taken during each step; what copies take while they run is among them.
        behind: What is still taken behind each step.
    """

    during: list[int]
    behind: list[int]


def moving_bytes(tape: Tape, steps: Sequence[Step]) -> Moving:
    """Returns the bytes that are taken while steps run, of pieces that move."""
    taken, ended = [0] * len(steps), [0] * len(steps)
    for piece, (begin, last) in _lifetimes(tape, steps).items():
        taken[begin] += tape.nbytes[piece[0]]
        if piece[1] >= 0 or not tape.stays[piece[0]]:
            ended[last] += tape.nbytes[piece[0]]
    behind = list(map(sub, accumulate(taken), accumulate(ended)))
    during = list(map(add, behind, ended))
    for index, step in enumerate(steps):
        if step.copy >= 0 and step.moves < 0:
            during[index] += tape.besides[step.op]
    return Moving(during, behind)


def _lifetimes(tape: Tape, steps: Sequence[Step]) -> dict[Piece, tuple[int, int]]:
    """Returns the pieces that steps take: the step that does, and the last one that reads them."""
    where: dict[ValueCopy, tuple[Piece, ...]] = {}
    begin: dict[Piece, int] = {}
    last: dict[Piece, int] = {}
    for index, step in enumerate(steps):
        for held in step.reads:
            for piece in where.get(held, ()):
                last[piece] = index
        for ended in tape.ends.get(step.op, ()) if step.copy < 0 else ():
            if (ended, -1) in begin:
                last[ended, -1] = index
        taking = tape.takes[step.op] if step.makes else ()
        if step.moves >= 0:
            taking = tape.places[step.moves] if step.makes else ()
        taken = {piece: (piece, step.copy) for piece in taking}
        for mine in taken.values():
            begin[mine] = last[mine] = index
        for held in step.makes:
            where[held] = _pieces(tape, step, held, taken, where)
    return {piece: (index, last[piece]) for piece, index in begin.items()}


def _pieces(
    tape: Tape,
    step: Step,
    made: ValueCopy,
    taken: Mapping[int, Piece],
    where: Mapping[ValueCopy, tuple[Piece, ...]],
) -> tuple[Piece, ...]:
    """Returns the pieces in which a result lies: those taken for it, and those of operands."""
    pieces = []
    for piece in tape.places[made[0]]:
        if piece in taken:
            pieces.append(taken[piece])
        else:
            held = (other for held in step.reads for other in where.get(held, ()))
            pieces += [other for other in held if other[0] == piece][:1]
    return tuple(pieces)
