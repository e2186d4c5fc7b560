"""What a loop takes: its iterations one after another, each with what the one before has left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from autopar.cost.memory.known import Given, Taken
from autopar.ir.memory.strides import Placed
from autopar.ir.program import Op, refs

Operand = tuple[Placed, tuple[int, ...]]
"""How a value lies in memory, and which pieces of memory it is in."""


class Piece(NamedTuple):
    """A piece of memory.

    Attributes:
        nbytes: Its bytes.
        is_kept: Whether somebody besides the iteration has it.
    """

    nbytes: int
    is_kept: bool


class Loop:
    """A loop under way.

    Args:
        op: The loop.
        given: Its operands.
        pieces: The pieces that they are in, and whether others read them.
        hosts: Those that are in the host's memory.

    Attributes:
        carried: What the last iteration has left for the next one.
        pieces: All pieces that are there.
        host_bytes: The most that an iteration takes of the host's memory.
    """

    def __init__(
        self,
        op: Op,
        given: Sequence[Operand],
        pieces: Mapping[int, Piece],
        hosts: Collection[int],
    ) -> None:
        carried, sliced = (len([*refs(op.arg(name, ()))]) for name in ("carried", "sliced"))
        self.carried = [*given[:carried]]
        entries = [(_entry(placed), inner) for placed, inner in given[carried:][:sliced]]
        self._held = [*entries, *given[carried + sliced :]]
        held = {piece for _, inner in self._held for piece in inner}
        # The loop itself has what it cuts, and what each iteration reads.
        self.pieces = {
            piece: each._replace(is_kept=each.is_kept or piece in held)
            for piece, each in pieces.items()
        }
        self._hosts = hosts
        self._fresh = count(max(pieces, default=-1) + 1)
        self._collected: set[int] = set()
        self._peak = 0
        self.host_bytes = 0

    def given(self) -> Given:
        """Returns what the next iteration is called with."""
        operands, numbers = [*self.carried, *self._held], self._numbers()
        return Given(
            tuple((placed, tuple(numbers[piece] for piece in inner)) for placed, inner in operands),
            tuple(
                (self.pieces[piece].nbytes, not self._is_kept(piece), piece in self._hosts)
                for piece in numbers
            ),
        )

    def add(self, taken: Taken) -> None:
        """Takes what an iteration takes, and leaves."""
        numbers = self._numbers()
        beside = self._bytes(piece for piece in self.pieces if piece not in numbers)
        self._peak = max(self._peak, taken.peak_bytes + beside)
        self.host_bytes = max(self.host_bytes, taken.host_bytes)
        found = {number: piece for piece, number in numbers.items()}
        for number, nbytes in taken.nbytes.items():
            found[number] = next(self._fresh)
            self.pieces[found[number]] = Piece(nbytes, is_kept=False)
        left = [(placed, tuple(found[each] for each in inner)) for placed, inner in taken.results]
        self.carried, stacked = left[: len(self.carried)], left[len(self.carried) :]
        self._collected.update(piece for _, inner in stacked for piece in inner)
        there = {piece for _, inner in (*self.carried, *self._held) for piece in inner}
        self.pieces = {
            piece: each
            for piece, each in self.pieces.items()
            if self._is_kept(piece) or piece in there
        }

    def peak_bytes(self, stacked_bytes: int) -> int:
        """Returns the most that there is at a time, with operands and results.

        Args:
            stacked_bytes: What is stacked when all is done.
        """
        return max(self._peak, self._bytes(self.pieces) + stacked_bytes)

    def _numbers(self) -> dict[int, int]:
        """Returns the numbers of the pieces that an iteration is given."""
        operands = (*self.carried, *self._held)
        pieces = dict.fromkeys(piece for _, inner in operands for piece in inner)
        return {piece: number for number, piece in enumerate(pieces)}

    def _is_kept(self, piece: int) -> bool:
        return self.pieces[piece].is_kept or piece in self._collected

    def _bytes(self, pieces: Iterable[int]) -> int:
        return sum(self.pieces[piece].nbytes for piece in pieces if piece not in self._hosts)


def _entry(placed: Placed) -> Placed:
    """Returns how an entry of a tensor's first dimension lies in memory."""
    return Placed(placed.shape[1:], placed.strides[1:], placed.itemsize)
