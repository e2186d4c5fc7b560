"""Damage to bytes, whatever they mean: as disks, copies and transfers do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

Change = Callable[[bytearray, Random, Sequence[int], bytes], str]
"""(content, chance, positions that count, another file's content) -> what was done."""


def damage(
    content: bytes, chance: Random, places: Sequence[int] = (), other: bytes = b""
) -> tuple[bytes, str]:
    """Returns damaged content, and what was done.

    Args:
        content: A file's.
        chance: Decides.
        places: The positions where damage begins; all by default.
        other: The content of a file of the same kind, to be spliced in.
    """
    changed = bytearray(content or b"\0")
    where = places or range(len(changed))
    done = [chance.choice(CHANGES)(changed, chance, where, other)]
    while chance.random() < 0.3:
        done.append(chance.choice(CHANGES)(changed, chance, where, other))
    return bytes(changed), ", ".join(done)


def _at(content: bytearray, chance: Random, places: Sequence[int]) -> int:
    return min(chance.choice(places), max(0, len(content) - 1))


def _flip(content: bytearray, chance: Random, places: Sequence[int], other: bytes) -> str:
    del other
    at = _at(content, chance, places)
    content[at : at + 1] = bytes([content[at] ^ 1 << chance.randrange(8)]) if content else b"\1"
    return f"a bit flipped at {at}"


def _overwrite(content: bytearray, chance: Random, places: Sequence[int], other: bytes) -> str:
    del other
    at = _at(content, chance, places)
    content[at : at + 1] = chance.choice((b"\0", b"\xff", b"\x7f", b"\x80", chance.randbytes(1)))
    return f"a byte overwritten at {at}"


def _zero(content: bytearray, chance: Random, places: Sequence[int], other: bytes) -> str:
    del other
    at, length = _at(content, chance, places), chance.choice((4, 16, 64, 512, 4096))
    length = min(length, len(content) - at)
    content[at : at + length] = bytes(length)
    return f"{length} bytes zeroed at {at}"


def _remove(content: bytearray, chance: Random, places: Sequence[int], other: bytes) -> str:
    del other
    at, length = _at(content, chance, places), chance.choice((1, 2, 3, 8, 100))
    del content[at : at + length]
    return f"{length} bytes removed at {at}"


def _insert(content: bytearray, chance: Random, places: Sequence[int], other: bytes) -> str:
    del other
    at, length = _at(content, chance, places), chance.choice((1, 2, 3, 8, 100))
    content[at:at] = chance.randbytes(length)
    return f"{length} bytes inserted at {at}"


def _repeat(content: bytearray, chance: Random, places: Sequence[int], other: bytes) -> str:
    del other
    at, length = _at(content, chance, places), chance.choice((1, 8, 64, 1000))
    content[at:at] = content[at : at + length]
    return f"{length} bytes repeated at {at}"


def _cut(content: bytearray, chance: Random, places: Sequence[int], other: bytes) -> str:
    del other
    at = _at(content, chance, places)
    del content[at:]
    return f"cut short at {at}"


def _extend(content: bytearray, chance: Random, places: Sequence[int], other: bytes) -> str:
    del places, other
    length = chance.choice((1, 4, 100, 10_000))
    content.extend(chance.choice((bytes(length), chance.randbytes(length))))
    return f"{length} bytes longer"


def _splice(content: bytearray, chance: Random, places: Sequence[int], other: bytes) -> str:
    at, start = _at(content, chance, places), chance.randrange(len(other) + 1)
    content[at:] = other[start:]
    return f"another file from {start} on at {at}"


CHANGES: Sequence[Change] = (
    *(_flip, _flip, _overwrite, _overwrite, _zero, _remove, _insert, _repeat),
    *(_cut, _extend, _splice),
)
