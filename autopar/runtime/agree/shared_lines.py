"""Memory that processes of one system share: a line of a few numbers for each of them.

The memory has no name in any file system, so nothing is left of it however its processes end. One
of them makes it, and the others open it by way of that process's files.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
from collections.abc import Sequence
from struct import Struct
from typing import Self

from autopar.runtime.job.siblings import PROCESSES, system

NUMBERS = 4
"""How many numbers a line has."""

_LINE = Struct(f"={NUMBERS + 2}q")
"""Numbers, their turn, and a check: a line of which a part is old has another one."""

_TURN, _CHECK = NUMBERS, NUMBERS + 1

_ABOUT = Struct("=3q")
"""What a rank says of itself: a token, on rank 0; its process's number; whether it has left."""

_APART = 64
"""Bytes from a line to the next, as of a cache's."""

_FACTORS = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB, 0x2545F4914F6CDD1D)
_MASK = (1 << 63) - 1


class SharedLines:
    """Lines of numbers, one for each rank and turn; those of two turns are kept.

    A rank may write a turn when all have read the one before the last.

    Args:
        memory: The memory.
        rank: This rank, whose lines it writes.
        size: Number of ranks.
        token: What tells this memory from any other.

    Attributes:
        address: Where other processes find it, while its file is open.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int, token: int) -> None:
        self.rank = rank
        self.size = size
        self.address = ""
        self._memory = memory
        self._token = token
        self._file = -1
        self._say(left=False)

    @classmethod
    def made(cls, size: int) -> Self | None:
        """Returns new lines for some ranks, on rank 0; None on a system that has no such memory."""
        if not hasattr(os, "memfd_create") or not system():
            return None
        file = -1
        try:
            file = os.memfd_create("autopar")
            os.ftruncate(file, _bytes(size))
            memory = mmap.mmap(file, _bytes(size))
        except OSError:
            if file >= 0:
                os.close(file)
            return None
        lines = cls(memory, 0, size, secrets.randbits(62))
        lines._file = file
        lines.address = json.dumps([system(), os.getpid(), file, lines._token])
        return lines

    @classmethod
    def found(cls, address: str, rank: int, size: int) -> Self | None:
        """Returns the lines that rank 0 made; None where this process can't see them.

        Args:
            address: What rank 0 said of them; "" if it has none.
            rank: This rank.
            size: Number of ranks.
        """
        host, process, number, token = json.loads(address or '["", 0, 0, 0]')
        if not host or host != system():
            return None
        try:
            file = os.open(PROCESSES / f"{process}/fd/{number}", os.O_RDWR | os.O_NONBLOCK)
            try:
                memory = mmap.mmap(file, _bytes(size))
            finally:
                os.close(file)
        except (OSError, ValueError):
            return None
        if _ABOUT.unpack_from(memory, _start(2, 0, size))[0] != token:
            return None
        return cls(memory, rank, size, token)

    def close_file(self) -> None:
        """Gives back the file, when all have opened it; the memory stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def write(self, turn: int, numbers: Sequence[int]) -> None:
        """Writes this rank's numbers, of 64 bits with a sign, for a turn from 1 on."""
        at = _start(turn % 2, self.rank, self.size)
        _LINE.pack_into(self._memory, at, *numbers, turn, _check(numbers, turn))

    def sum(self, turn: int) -> list[int] | None:
        """Returns the sums of all ranks' numbers, modulo 2^64; None if one isn't there yet."""
        lines = [self._line(turn, rank) for rank in range(self.size)]
        if None in lines:
            return None
        return [sum(column) & 2 * _MASK + 1 for column in zip(*filter(None, lines), strict=True)]

    def missing(self, turn: int) -> list[int]:
        """Returns the ranks that haven't written their lines of a turn."""
        return [rank for rank in range(self.size) if self._line(turn, rank) is None]

    def owner(self, rank: int) -> int:
        """Returns the number of the process that is a rank."""
        return int(_ABOUT.unpack_from(self._memory, _start(2, rank, self.size))[1])

    def leave(self) -> None:
        """Says that this rank writes no more, and gives back the file if it hasn't been."""
        self._say(left=True)
        self.close_file()

    def has_left(self, rank: int) -> bool:
        """Returns whether a rank has said that it writes no more."""
        return bool(_ABOUT.unpack_from(self._memory, _start(2, rank, self.size))[2])

    def _say(self, left: bool) -> None:
        at = _start(2, self.rank, self.size)
        _ABOUT.pack_into(self._memory, at, self._token, os.getpid(), left)

    def _line(self, turn: int, rank: int) -> tuple[int, ...] | None:
        """Returns a rank's numbers; None if not all of its line is of this turn.

        Another processor may see parts of a line before others.
        """
        line = _LINE.unpack_from(self._memory, _start(turn % 2, rank, self.size))
        numbers = line[:_TURN]
        whole = line[_TURN] == turn and line[_CHECK] == _check(numbers, turn)
        return numbers if whole else None


def _check(numbers: Sequence[int], turn: int) -> int:
    return (sum(map(int.__mul__, numbers, _FACTORS)) ^ turn * _FACTORS[0]) & _MASK


def _start(block: int, rank: int, size: int) -> int:
    return (block * size + rank) * _APART


def _bytes(size: int) -> int:
    return 3 * size * _APART
