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
        index
        for index, op in enumerate(tape.ops)
        if tape.early[index] and op.microbatch == batch and op.results
    ]
    backward = [
        index for index, late in enumerate(tape.late) if late and tape.batches[index] == batch
    ]
    if not forward or not backward:
        return None
    crossing = _crossing(tape, forward)
    made = [sum(tape.nbytes[piece] for piece in tape.takes[index]) for index in forward]
    borders = _divided(crossing, made, _large_enough(made, _borders(crossing)))
    ends = [*borders, len(forward)]
    parts = tuple(tuple(forward[start:end]) for start, end in zip([0, *borders], ends, strict=True))
    return Blocks(batch, parts, _regions(tape, parts, backward))


def _crossing(tape: Tape, forward: Sequence[int]) -> list[int]:
    """Returns the bytes that are made before each forward op and read by it or later ones."""
    begin: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, op in enumerate(forward):
        for value in tape.reads[op]:
            last.update((piece, place) for piece in tape.places[value] if piece in begin)
        begin.update(dict.fromkeys(tape.takes[op], place))
    change = [0] * (len(forward) + 1)
    for piece, end in last.items():
        if not tape.stays[piece]:
            change[begin[piece] + 1] += tape.nbytes[piece]
            change[end + 1] -= tape.nbytes[piece]
    crossing, total = [], 0
    for each in change[:-1]:
        total += each
        crossing.append(total)
    return crossing


def _borders(crossing: Sequence[int]) -> list[int]:
    """Returns the places of the minima between rises."""
    borders: list[int] = []
    low, high, place, rising = crossing[0], crossing[0], 0, True
    for index, nbytes in enumerate(crossing):
        if rising:
            high = max(high, nbytes)
            if nbytes * RISE <= high:
                low, place, rising = nbytes, index, False
        elif nbytes <= low:
            low, place = nbytes, index
        elif nbytes >= low * RISE:
            if place:
                borders.append(place)
            high, rising = nbytes, True
    return borders


def _large_enough(made: Sequence[int], borders: Sequence[int]) -> list[int]:
    """Returns the borders but those of blocks that make next to nothing."""
    least = sum(made) / (len(borders) + 1) / SMALL
    kept: list[int] = []
    for border in borders:
        start = kept[-1] if kept else 0
        if sum(made[start:border]) >= least and sum(made[border:]) >= least:
            kept.append(border)
    return kept


def _divided(crossing: Sequence[int], made: Sequence[int], borders: Sequence[int]) -> list[int]:
    """Returns the borders, and more in blocks through which much the same crosses everywhere."""
    divided: list[int] = []
    for start, end in zip([0, *borders], [*borders, len(made)], strict=True):
        divided += [start] if start else []
        inner = [crossing[index] for index in range(start + 1, end) if crossing[index]]
        if end - start >= 2 * PARTS and inner and max(inner) <= RISE * min(inner):
            part = sum(made[start:end]) / PARTS
            before, behind = 0, sum(made[start:end])
            for index in range(start + 1, end):
                before, behind = before + made[index - 1], behind - made[index - 1]
                if crossing[index] and before >= part and behind >= part:
                    divided.append(index)
                    before = 0
    return divided


def _regions(
    tape: Tape, parts: Sequence[Sequence[int]], backward: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Returns the backward ops of each block: from where its values begin to be read."""
    places = {op: place for place, op in enumerate(backward)}
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
    for op in part:
        for value in tape.makes[op]:
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
