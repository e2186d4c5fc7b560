"""How users write that a size is open: `1:64`, `32:960:32`, `8~1:64`, `8~`; a number binds it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from autopar.ir.expr.expression import UNBOUNDED, IntExpr, Size, add
from autopar.ir.expr.multiples import in_steps

_OPEN = re.compile(
    r"(?:(?P<planned>\d{1,9})~)?(?:(?P<least>\d{0,9}):(?P<most>\d{0,9})(?::(?P<step>\d{1,4}))?)?",
    re.ASCII,
)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)

SPELLINGS = (
    "a number, as 8; a range, as 1:64; one in steps, as 32:960:32; or a range and a size to plan"
    " for, as 8~1:64"
)


@dataclass(frozen=True, slots=True)
class SizeRange:
    """What an open size may be.

    Attributes:
        least, most: The smallest and the largest.
        planned: For which size decisions are made; None to leave that open, too.
        step: It is a multiple of this, as are `least` and `planned`.
    """

    least: int = 0
    most: int = UNBOUNDED
    planned: int | None = None
    step: int = 1

    def size(self, name: str, default: int) -> Size:
        """Returns the open size of this name.

        Args:
            name: An identifier.
            default: For which size decisions are made where nothing is said.
        """
        planned = default if self.planned is None else self.planned
        size = Size(name, self.least, self.most, min(max(planned, self.least), self.most))
        return size if self.step == 1 else in_steps(size, self.step) or size


def range_text(size: Size) -> str:
    """Returns what an open size may be, for people: `batch: 1 to 64, planned for 8`."""
    most = "" if size.most == UNBOUNDED else f" to {size.most}"
    least = f"{size.least}{most or ' or more'}"
    step = f" in steps of {size.step}" if size.step > 1 else ""
    return f"{size.name}: {least}{step}, planned for {size.planned}"


def limits_text(size: Size) -> str:
    """Returns what an open size may be, as a sentence: `batch is at least 1 and at most 64`."""
    most = "" if size.most == UNBOUNDED else f" and at most {size.most}"
    step = f", and a multiple of {size.step}" if size.step > 1 else ""
    return f"{size.name} is at least {size.least}{most}{step}"


def parse_range(text: str) -> int | SizeRange:
    """Returns the number, or the range, that a text says; a range of one number is that.

    Raises:
        ValueError: If it says neither, or a range that is empty or misses what is planned for.
    """
    if _NUMBER.fullmatch(text):
        return int(text)
    found = _OPEN.fullmatch(text)
    if found is None or not text:
        raise ValueError(f"{text!r} is no size: write {SPELLINGS}")
    planned = int(found["planned"]) if found["planned"] else None
    least = int(found["least"] or 0)
    most = int(found["most"]) if found["most"] else UNBOUNDED
    if least > most:
        raise ValueError(f"{text!r}: no size is at least {least} and at most {most}")
    if planned is not None and not least <= planned <= most:
        raise ValueError(f"{text!r}: {planned} isn't from {least} to {most}")
    if least == most:
        return least
    step = int(found["step"] or 1)
    if step < 1 or least % step or (planned or 0) % step:
        raise ValueError(f"{text!r}: what it says are no multiples of {step}")
    return SizeRange(least, most, planned, step)


def sum_of(text: str, known: Mapping[str, IntExpr]) -> IntExpr | None:
    """Returns the sum that a text says, as `past + length`; None if it is no such.

    Args:
        text: Names of sizes, and numbers.
        known: What sizes are, by name.
    """
    parts = [part.strip() for part in text.split("+")]
    if len(parts) < 2 or not all(part in known or _NUMBER.fullmatch(part) for part in parts):
        return None
    return reduce(add, (known[part] if part in known else int(part) for part in parts))
