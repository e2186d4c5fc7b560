"""How strings and integers are stored in protobuf messages, shared by all kinds of files.

The readers raise `Corrupt` for what no writer writes; `serde` adds the name of the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from autopar.ir import program_pb2 as pb
from autopar.ir.expr.expression import Size

Entry = TypeVar("Entry")

MAX_PROCESSES = 1 << 24
"""Most processes or ranks that a file may speak of, so that a damaged count can't fill memory."""


MAX_EXPR_DEPTH = 100
MAX_EXPR_NODES = 10_000
"""Largest rank expression, so that none in a file is too deep or wide to evaluate."""


class Corrupt(ValueError):
    """A file holds something that no version of autopar writes. The message says what."""


class StringWriter:
    """Numbers strings in order of first use; the empty string has number 0."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def number(self, text: str) -> int:
        """Returns the number of a string."""
        return self._numbers.setdefault(text, len(self._numbers))

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> list[int]:
        """Returns the numbers of pairs of strings, one after the other."""
        return [self.number(text) for pair in pairs for text in pair]

    def table(self) -> list[bytes]:
        """Returns the strings, the one with number 1 first."""
        return [text.encode("utf-8", "surrogatepass") for text in list(self._numbers)[1:]]


class StringReader:
    """Looks up what `StringWriter` numbered."""

    def __init__(self, table: Iterable[bytes]) -> None:
        self._strings = ["", *(_decode(data) for data in table)]

    def text(self, number: int) -> str:
        """Returns the string of a number."""
        return entry(self._strings, number, "string")

    def pairs(self, numbers: Sequence[int], what: str) -> tuple[tuple[str, str], ...]:
        """Returns pairs of strings, which are stored one after the other."""
        texts = [self.text(number) for number in numbers]
        return tuple(in_groups_of_two(texts, what))


def in_groups_of_two(items: Sequence[Entry], what: str) -> Iterator[tuple[Entry, Entry]]:
    """Returns the items two by two."""
    if len(items) % 2:
        raise Corrupt(f"{what}: {len(items)} entries are not pairs")
    return zip(items[::2], items[1::2], strict=True)


def entry(table: Sequence[Entry], number: int, what: str) -> Entry:
    """Returns an entry of a table by its position."""
    if not 0 <= number < len(table):
        raise Corrupt(f"there is no {what} number {number}, only {len(table)}")
    return table[number]


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Corrupt("a string is not UTF-8") from error


def write_ints(numbers: Sequence[int], message: pb.Ints) -> None:
    """Fills in integers, as runs (start, step, length) if these are few, else one by one."""
    if isinstance(numbers, range):
        runs = [(numbers.start, numbers.step, len(numbers))] if numbers else []
    else:
        runs = list(_runs(numbers))
    if 3 * len(runs) < len(numbers):
        message.runs.extend(number for run in runs for number in run)
    else:
        message.values.extend(numbers)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    if len(numbers) > 1 and (step := numbers[1] - numbers[0]):
        # The usual case, a single run, compared at once: ranks of a large mesh.
        whole = range(numbers[0], numbers[0] + step * len(numbers), step)
        if tuple(whole) == tuple(numbers):
            yield whole.start, step, len(numbers)
            return
    at = 0
    while at < len(numbers):
        start = numbers[at]
        step = numbers[at + 1] - start if at + 1 < len(numbers) else 1
        length = 1
        while at + length < len(numbers) and numbers[at + length] == start + step * length:
            length += 1
        yield start, step, length
        at += length


def ints_from_proto(ints: pb.Ints, what: str) -> tuple[int, ...]:
    """Returns the integers."""
    if len(ints.runs) % 3 or (ints.runs and ints.values):
        raise Corrupt(f"{what}: the list of integers is malformed")
    runs = list(zip(ints.runs[::3], ints.runs[1::3], ints.runs[2::3], strict=True))
    lengths = [length for _, _, length in runs]
    if any(length < 1 for length in lengths) or sum(lengths) > MAX_PROCESSES:
        raise Corrupt(f"{what}: the list of integers claims {sum(lengths)} entries")
    if not runs:
        return tuple(ints.values)
    return tuple(start + step * at for start, step, length in runs for at in range(length))


def array_size(shape: Sequence[int], what: str) -> int:
    """Returns the number of processes in an array of this shape."""
    size = math.prod(shape)
    if size > MAX_PROCESSES:
        raise Corrupt(f"{what}: shape {list(shape)} has more than {MAX_PROCESSES} processes")
    return size


def extent_of_binary(lhs: tuple[int, int], rhs: tuple[int, int]) -> tuple[int, int]:
    """Returns (depth, number of nodes) of an operation on expressions of these extents.

    Raises:
        Corrupt: If it is larger than a file may hold.
    """
    depth, nodes = 1 + max(lhs[0], rhs[0]), 1 + lhs[1] + rhs[1]
    if depth > MAX_EXPR_DEPTH or nodes > MAX_EXPR_NODES:
        raise Corrupt(f"a rank expression is {depth} deep and has {nodes} nodes")
    return depth, nodes


def note_open(size: Size, known: dict[str, Size]) -> None:
    """Adds an open size to those of a file.

    Raises:
        Corrupt: If it makes no sense, or another one has its name.
    """
    if not size.name.isidentifier():
        raise Corrupt(f"an open size can't be called {size.name!r}")
    if size.least > size.most:
        raise Corrupt(f"open size {size} is at least {size.least} and at most {size.most}")
    if size.least % size.step or size.planned % size.step:
        raise Corrupt(f"open size {size} is a multiple of {size.step}, and at least {size.least}")
    if known.setdefault(size.name, size) != size:
        raise Corrupt(f"there are two different open sizes {size}")
