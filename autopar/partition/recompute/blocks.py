"""Blocks: where the forward pass of a microbatch may be cut, so that little crosses the cut.

A block whose ops are repeated starts from what crosses its border, which is saved. Borders are
where the bytes that later forward ops read are fewest, as between the layers of a model; where they
are the same all the way, a block is cut into equal parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autopar.partition.recompute.tape import Tape

RISE = 1.5
"""By which factor the bytes that cross must rise before and after a border."""

SMALL = 8
"""How many times less than others a block may make; others join their neighbour."""

PARTS = 8
"""Blocks that a block of at least twice as many ops is cut into at most, if much the same crosses
everywhere."""

FEW = 10
"""The part of a block's bytes that may be read before the block's turn in the backward pass."""


@dataclass(frozen=True)
class Blocks:
    """The blocks of a microbatch.

    Attributes:
        batch: The microbatch.
        forward: The forward ops of each block, in order.
        backward: The backward ops while the block's values are read: of the last block first.
    """

    batch: int
    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]


def blocks_of(tape: Tape, batch: int) -> Blocks | None:
    """Returns the blocks of a microbatch; None if it has no backward pass."""
    forward = [
        at
        for at, op in enumerate(tape.ops)
        if tape.early[at] and op.microbatch == batch and op.results
    ]
    backward = [at for at, late in enumerate(tape.late) if late and tape.batches[at] == batch]
    if not forward or not backward:
        return None
    crossing = _crossing(tape, forward)
    made = [sum(tape.nbytes[piece] for piece in tape.takes[at]) for at in forward]
    borders = _divided(crossing, made, _spread(made, _borders(crossing)))
    ends = [*borders, len(forward)]
    parts = tuple(tuple(forward[start:end]) for start, end in zip([0, *borders], ends, strict=True))
    return Blocks(batch, parts, _regions(tape, parts, backward))


def _crossing(tape: Tape, forward: Sequence[int]) -> list[int]:
    """Returns the bytes that are made before each forward op and read by it or later ones."""
    begin: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, at in enumerate(forward):
        for value in tape.reads[at]:
            last.update((piece, place) for piece in tape.places[value] if piece in begin)
        begin.update(dict.fromkeys(tape.takes[at], place))
    change = [0] * (len(forward) + 1)
    for piece, end in last.items():
        if not tape.stays[piece]:
            change[begin[piece] + 1] += tape.nbytes[piece]
            change[end + 1] -= tape.nbytes[piece]
    found, total = [], 0
    for each in change[:-1]:
        total += each
        found.append(total)
    return found


def _borders(crossing: Sequence[int]) -> list[int]:
    """Returns the places of the minima between rises."""
    found: list[int] = []
    low, high, place, rising = crossing[0], crossing[0], 0, True
    for at, nbytes in enumerate(crossing):
        if rising:
            high = max(high, nbytes)
            if nbytes * RISE <= high:
                low, place, rising = nbytes, at, False
        elif nbytes <= low:
            low, place = nbytes, at
        elif nbytes >= low * RISE:
            if place:
                found.append(place)
            high, rising = nbytes, True
    return found


def _spread(made: Sequence[int], borders: Sequence[int]) -> list[int]:
    """Returns the borders but those of blocks that make next to nothing."""
    least = sum(made) / (len(borders) + 1) / SMALL
    found: list[int] = []
    for border in borders:
        start = found[-1] if found else 0
        if sum(made[start:border]) >= least and sum(made[border:]) >= least:
            found.append(border)
    return found


def _divided(crossing: Sequence[int], made: Sequence[int], borders: Sequence[int]) -> list[int]:
    """Returns the borders, and more in blocks through which much the same crosses everywhere."""
    found: list[int] = []
    for start, end in zip([0, *borders], [*borders, len(made)], strict=True):
        found += [start] if start else []
        inner = [crossing[at] for at in range(start + 1, end) if crossing[at]]
        if end - start >= 2 * PARTS and inner and max(inner) <= RISE * min(inner):
            part = sum(made[start:end]) / PARTS
            before, behind = 0, sum(made[start:end])
            for at in range(start + 1, end):
                before, behind = before + made[at - 1], behind - made[at - 1]
                if crossing[at] and before >= part and behind >= part:
                    found.append(at)
                    before = 0
    return found


def _regions(
    tape: Tape, parts: Sequence[Sequence[int]], backward: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Returns the backward ops of each block: from where its values begin to be read."""
    places = {at: place for place, at in enumerate(backward)}
    starts = [_start(tape, part, places) for part in parts]
    starts[-1] = 0
    for number in reversed(range(len(parts) - 1)):
        starts[number] = max(starts[number], starts[number + 1])
    ends = [len(backward), *starts[:-1]]
    return tuple(tuple(backward[start:end]) for start, end in zip(starts, ends, strict=True))


def _start(tape: Tape, part: Sequence[int], places: Mapping[int, int]) -> int:
    """Returns the first of the places where a part's values are read, but for a few bytes."""
    firsts: dict[int, int] = {}
    inside = frozenset(part)
    for at in part:
        for value in tape.makes[at]:
            if any(tape.early[reader] and reader not in inside for reader in tape.readers[value]):
                continue  # Later blocks read it, and so do their gradients.
            read = [places[reader] for reader in tape.readers[value] if reader in places]
            for piece in tape.places[value] if read else ():
                if not tape.stays[piece]:
                    firsts[piece] = min([*read, firsts.get(piece, len(places))])
    rest = sum(tape.nbytes[piece] for piece in firsts) / FEW
    for place, piece in sorted((place, piece) for piece, place in firsts.items()):
        rest -= tape.nbytes[piece]
        if rest < 0:
            return place
    return 0
