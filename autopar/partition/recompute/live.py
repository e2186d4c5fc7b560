"""The memory of a replay that moves with the order of the steps.

Memory is there from the step that takes it to the last one that reads a value in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from autopar.partition.recompute.replay import Held, Step
from autopar.partition.recompute.tape import Tape

Piece = tuple[int, int]
"""A piece of memory, and the number of the copy that takes it; -1 for the op itself."""


def moving_bytes(tape: Tape, steps: Sequence[Step]) -> list[int]:
    """Returns the bytes that are taken during each step, of pieces that move.

    What copies take while they run is among them.
    """
    where: dict[Held, tuple[Piece, ...]] = {}
    begin: dict[Piece, int] = {}
    last: dict[Piece, int] = {}
    for at, step in enumerate(steps):
        for held in step.reads:
            last.update(dict.fromkeys(where.get(held, ()), at))
        for ended in tape.ends.get(step.op, ()) if step.copy < 0 else ():
            if (ended, -1) in begin:
                last[ended, -1] = at
        taking = tape.takes[step.op] if step.makes else ()
        if step.moves >= 0:
            taking = tape.places[step.moves] if step.makes else ()
        taken = {piece: (piece, step.copy) for piece in taking}
        for mine in taken.values():
            begin[mine] = last[mine] = at
        for held in step.makes:
            where[held] = _pieces(tape, step, held, taken, where)
    change = [0] * (len(steps) + 1)
    for piece, at in begin.items():
        change[at] += tape.nbytes[piece[0]]
        if piece[1] >= 0 or not tape.stays[piece[0]]:
            change[last[piece] + 1] -= tape.nbytes[piece[0]]
    live = list(accumulate(change[:-1]))
    for at, step in enumerate(steps):
        if step.copy >= 0 and step.moves < 0:
            live[at] += tape.besides[step.op]
    return live


def _pieces(
    tape: Tape,
    step: Step,
    made: Held,
    taken: Mapping[int, Piece],
    where: Mapping[Held, tuple[Piece, ...]],
) -> tuple[Piece, ...]:
    """Returns the pieces in which a result lies: those taken for it, and those of operands."""
    found = []
    for piece in tape.places[made[0]]:
        if piece in taken:
            found.append(taken[piece])
        else:
            held = (other for held in step.reads for other in where.get(held, ()))
            found += [other for other in held if other[0] == piece][:1]
    return tuple(found)
