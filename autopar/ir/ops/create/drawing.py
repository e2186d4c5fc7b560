"""What kernels of random ops take while they draw, beside the rules that say what they draw.

A random number is made of 64 bits, and those of a counter, so that in between there are several
times the bytes of the result. On the CPU pieces are drawn one after the other, and put together.
What is said here follows the runtime's kernels step by step, and is compared with them.

Without it the peak of a step with dropout is predicted 28% too low (`benchmarks/without.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from autopar.ir.memory.kernels import DRAWN_AT_ONCE

_BITS = 24
"""Bytes per element while bits are mixed: of the index, the bits, and these shifted."""

_START = 8
"""Bytes of the counter's start."""


class Drawing(NamedTuple):
    """What a kernel takes, in bytes per element.

    Attributes:
        wide: The most while bits become numbers that are computed in 8 bytes.
        narrow: The same of others.
        drawn: Of what is drawn; 0 if that is the result.
        around: What there is once all is drawn, but for results.
        results: How many results' items there are then.
    """

    wide: int = _BITS
    narrow: int = _BITS
    drawn: int = 0
    around: int = 0
    results: int = 0


_UNIFORM = Drawing(wide=32)

DRAWINGS: Mapping[str, Drawing] = {
    "autopar.rand": _UNIFORM,
    "autopar.randn": Drawing(wide=56, narrow=36),
    "autopar.randint": Drawing(),
    "autopar.bernoulli": Drawing(wide=32, narrow=32, drawn=8, around=9, results=1),
    "autopar.bernoulli_p": Drawing(),
    "autopar.dropout": Drawing(drawn=1, around=1, results=2),
    "autopar.rrelu": Drawing(wide=32, around=1, results=3),
    "autopar.exponential": _UNIFORM,
    "autopar.cauchy": _UNIFORM,
    "autopar.log_normal": Drawing(wide=56, narrow=36, results=2),
    "autopar.geometric": Drawing(wide=32, narrow=32),
    "autopar.permutation": Drawing(drawn=8, around=24),
}
"""The kernels of which it is known."""


def drawing_bytes(kind: str, count: int, itemsize: int, *, in_pieces: bool = True) -> int:
    """Returns the most bytes that there are while a random op runs, its results among them.

    Args:
        kind: The op's kind; 0 is returned if nothing is known of it.
        count: Elements of the result.
        itemsize: Bytes of each.
        in_pieces: Whether pieces are drawn one after the other, as on the CPU.
    """
    drawing = DRAWINGS.get(kind)
    if drawing is None or not count:
        return 0
    most = drawing.wide if itemsize == 8 else drawing.narrow
    drawn = _drawn_bytes(count, most, drawing.drawn or itemsize, in_pieces)
    return max(_START + drawn, (drawing.around + drawing.results * itemsize) * count)


def _drawn_bytes(count: int, most: int, itemsize: int, in_pieces: bool) -> int:
    """Returns the most bytes until all is drawn; each piece is kept until all are put together."""
    full, rest = divmod(count, DRAWN_AT_ONCE)
    if not in_pieces or full + bool(rest) <= 1:
        return most * count
    piece = DRAWN_AT_ONCE
    last = itemsize * full * piece + most * rest
    return max(itemsize * (full - 1) * piece + most * piece, last, 2 * itemsize * count)
