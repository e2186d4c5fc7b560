"""User choices: what the user wants of activations, on a tape.

Of a region that is to be computed again, what ops of the forward pass outside of it read stays,
with whatever lies in its memory; so does what its ops read from outside.
"""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.activations import OFFLOAD, RECOMPUTE, choice_of
from autopar.partition.recompute.offload_candidates import OffloadCandidate
from autopar.partition.recompute.record import Record
from autopar.partition.recompute.way import Way


def user_choices(tape: Record, candidates: Mapping[int, OffloadCandidate]) -> Way:
    """Returns what is computed again, and what leaves and comes back, whatever else does.

    Args:
        tape: The program.
        candidates: The values that may leave.
    """
    chosen = {index: choice_of(op) for index, op in enumerate(tape.ops) if tape.early[index]}
    choices = {index: each for index, each in chosen.items() if each[0]}
    if not choices:
        return Way()
    outside = _Regions(tape, {index: region for index, (_, region) in choices.items()})
    repeated = frozenset(
        index
        for index, (choice, region) in choices.items()
        if choice == RECOMPUTE and tape.again[index] is not None
        if not (region and outside.reads(index, region))
    )
    offloaded = frozenset(
        value
        for index, (choice, _) in choices.items()
        if choice == OFFLOAD
        for value in tape.makes[index]
        if value in candidates
    )
    return Way(repeated, offloaded=offloaded)


class _Regions:
    def __init__(self, tape: Record, regions: Mapping[int, str]) -> None:
        self.tape = tape
        self.regions = regions
        self.sharing: dict[int, list[int]] = {}
        for value, pieces in enumerate(tape.places):
            for piece in pieces:
                self.sharing.setdefault(piece, []).append(value)

    def reads(self, op: int, region: str) -> bool:
        """Whether a forward op outside of a region reads memory that an op in it takes."""
        tape = self.tape
        taken = {value for piece in tape.takes[op] for value in self.sharing.get(piece, ())}
        return any(
            tape.early[reader] and self.regions.get(reader) != region
            for value in (*tape.makes[op], *taken)
            for reader in tape.readers[value]
        )
