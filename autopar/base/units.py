"""Figures as people write them: 24GiB, 80GB, 512 MiB; 45 ms; 3.2 GFLOP; 1 rank, 8 ranks."""

from __future__ import annotations

import math
import re

from autopar.base.errors import InvalidInputError

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_bytes(text: str) -> int:
    """Returns the bytes that a text such as `24GiB`, `80 GB` or `1000000` means.

    Raises:
        InvalidInputError: If it can't be understood.
    """
    match = re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get((match[2] or "b").lower()) if match else None
    if match is None or unit is None:
        raise InvalidInputError(f"memory {text!r}: write a number and a unit, as 24GiB or 80GB")
    if unit == 1 and "." in match[1]:
        raise InvalidInputError(
            f"memory {text!r}: that many bytes there aren't; give a unit, as GiB"
        )
    return int(float(match[1]) * unit)


def parse_limit(memory: str | float) -> int:
    """Returns the bytes that a device may hold at once, given as such or as text.

    Raises:
        InvalidInputError: If it can't be understood, or is nothing.
    """
    if isinstance(memory, float) and not memory.is_integer():
        raise InvalidInputError(f"memory {memory!r}: give whole bytes, or a text as '24.5GiB'")
    found = parse_bytes(memory) if isinstance(memory, str) else int(memory)
    if found <= 0:
        raise InvalidInputError(f"memory {memory!r}: a device holds more than nothing; give bytes")
    return found


def human_bytes(count: int, *, enough: bool = False) -> str:
    """Returns a size with a binary unit: `512 B`, `1.5 KiB`, `64.0 MiB`.

    Args:
        count: The bytes.
        enough: Whether the text must not stand for less, as a limit that is advised.
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    if unit == "B":
        return f"{count} B"
    return f"{math.ceil(size * 10) / 10 if enough else size:.1f} {unit}"


def human_flops(count: float) -> str:
    """Returns a number of floating-point operations with a decimal unit: `3.2 GFLOP`."""
    for unit in ("", "K", "M", "G", "T"):
        if count < 1000:
            return f"{count:.3g} {unit}FLOP"
        count /= 1000
    return f"{count:.3g} PFLOP"


def human_seconds(seconds: float, digits: int = 3) -> str:
    """Returns a time with a decimal unit: `3.2 us`, `45 ms`, `1.5 s`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 1000 * size:
            return f"{seconds:.0f} s"
        if seconds >= size:
            return f"{seconds / size:.{digits}g} {unit}"
    return f"{seconds / 1e-9:.{digits}g} ns" if seconds else "0 s"


def human_slowdown(ratio: float) -> str:
    """Returns how much longer one thing takes: `9.54% slower than`, `58 times as slow as`.

    Args:
        ratio: Its time in parts of the other's, at least 1.
    """
    if ratio < 2:
        return f"{100 * (ratio - 1):.3g}% slower than"
    return f"{ratio:.{1 if ratio < 10 else 0}f} times as slow as"


def counted(count: int, noun: str) -> str:
    """Returns a number of things in words: `1 rank`, `8 ranks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
