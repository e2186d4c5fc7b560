"""Scalars at the edges of what readers expect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

INTEGERS = (
    *(0, 1, 2, 3, 7, 127, 128, 255, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32, 2**47),
    *(2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 10**400),
)
FLOATS = (0.0, -0.0, 0.5, -1.0, 5e-324, 1e-30, 1e30, 1.7e308, math.inf, -math.inf, math.nan)
STRINGS = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "a\nb: c",
        "é",
        "\u202e",
        "\U0001f600",
        "%s%n{0}",
        "*",
        "[",
        "-1",
        "0",
        "nan",
    ),
    *("../../x", "/etc/passwd", "/dev/zero", ".", "con", "x" * 5000, "self", "__class__", "1e999"),
)


def integer(chance: Random, low: int | None = None, high: int | None = None) -> int:
    """Returns a small integer or one at an edge, within bounds if there are any."""
    if chance.random() < 0.5:
        value = chance.randrange(20)
    else:
        value = chance.choice(INTEGERS) + chance.choice((-1, 0, 0, 1))
    value *= chance.choice((1, 1, 1, -1))
    if low is not None and high is not None and not low <= value <= high:
        return chance.choice((low, high, min(max(0, low), high)))
    return value


def number(chance: Random) -> float:
    """Returns a float."""
    return chance.choice(FLOATS) * chance.choice((1, 1, -1))


def text(chance: Random, known: Sequence[str] = ()) -> str:
    """Returns an odd string, one of those that are known, or one like them."""
    if not known or chance.random() < 0.4:
        return chance.choice(STRINGS)
    one = chance.choice(known)
    kind = chance.random()
    if kind < 0.6:
        return one
    if kind < 0.8:
        return one[: chance.randrange(len(one) + 1)]
    return one + chance.choice(known) if kind < 0.9 else one.swapcase()
