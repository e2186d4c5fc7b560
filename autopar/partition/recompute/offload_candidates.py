"""Offload candidates: which values may wait in the host's memory between forward and backward pass.

These are values with memory of their own that nobody reads in between. What else lies in that
memory, as views, is made again of what comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autopar.partition.recompute.record import Record


@dataclass(frozen=True, slots=True)
class OffloadCandidate:
    """How a value may leave.

    Attributes:
        behind: The last forward op that reads the value's memory.
        before: The first backward op that does.
        seconds: Of both transfers.
    """

    behind: int
    before: int
    seconds: float


def offload_candidates(tape: Record) -> Mapping[int, OffloadCandidate]:
    """Returns the values that may leave."""
    sharing: dict[int, list[int]] = {}
    for value, pieces in enumerate(tape.places):
        for piece in pieces:
            sharing.setdefault(piece, []).append(value)
    kept = {piece for pieces in tape.ends.values() for piece in pieces}
    numbers = {name: number for number, name in enumerate(tape.names)}
    candidates = {}
    for piece, buffer in enumerate(tape.memory.buffers):
        number = numbers.get(buffer.name)
        if number is not None and not tape.stays[piece] and piece not in kept:
            candidate = _candidate(tape, number, sharing.get(piece, ()))
            if candidate is not None:
                candidates[number] = candidate
    return candidates


def _candidate(tape: Record, value: int, sharing: Sequence[int]) -> OffloadCandidate | None:
    """Returns how a value may leave in whose memory these values are."""
    maker = tape.makers[value]
    if not tape.early[maker] or len(tape.places[value]) != 1:
        return None
    if not tape.shared.staying.isdisjoint(tape.names[each] for each in sharing):
        return None
    batch = tape.batches[maker]
    readers = sorted({reader for each in sharing for reader in tape.readers[each]})
    forward = [each for each in readers if tape.early[each]]
    backward = [each for each in readers if tape.late[each] and tape.batches[each] == batch]
    if not backward or len(forward) + len(backward) < len(readers):
        return None
    behind, nbytes = max([maker, *forward]), tape.nbytes[tape.places[value][0]]
    # Where memory holds more than the value, as padding, what leaves isn't what is won.
    if behind >= backward[0] or nbytes != tape.value_bytes[value]:
        return None
    return OffloadCandidate(behind, backward[0], 2 * tape.cluster.transfer_seconds(nbytes))
