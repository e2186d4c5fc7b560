"""What the user wants in parts: values by name, or marked in the model, and how each may be cut."""

from __future__ import annotations

import fnmatch
import math
import operator
from collections.abc import Iterator
from itertools import accumulate

from autopar.annotate import ChunkPin
from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.chunks import chunk_of
from autopar.ir.ops import rule_of
from autopar.ir.ops.shape.view import RESHAPES
from autopar.ir.program import STORED_ROLES, Function
from autopar.planning.chunk.split import Cut


class Wanted:
    """A value that is to be cut.

    Args:
        name: What the user calls it, or what it is in.
        value: Its name.
        dim: The dimension; None for any.
        parts: How many parts.
        place: Where the user says so.
    """

    def __init__(self, name: str, value: str, dim: int | None, parts: int, place: str) -> None:
        self.name, self.value, self.dim, self.parts, self.place = name, value, dim, parts, place

    def cuts(self, main: Function) -> Iterator[Cut]:
        """Yields how the value may be cut: a dimension, or what was one before it was merged."""
        shape = main.values[self.value].shape
        for dim, size in enumerate(shape):
            if self.dim not in (None, dim) or not isinstance(size, int):
                continue
            for outer in (1, *_merged(main, size)):
                inner = size // outer
                if min(inner, self.parts) > 1:
                    yield Cut(dim, outer, inner, -(-inner // self.parts))


def _merged(main: Function, size: int) -> list[int]:
    """Returns the sizes in front of others with which views make a dimension of a size."""
    found: dict[int, None] = {}
    for op in main.ops:
        if op.phase == "forward" and op.kind in RESHAPES:
            rule = rule_of(op, main.values)
            if rule is None:
                continue
            for dims in (*rule.operands, *rule.results):
                for dim in dims:
                    sizes = [each for name in dim if type(each := rule.sizes[name]) is int]
                    if len(sizes) == len(dim) and math.prod(sizes) == size:
                        found.update(dict.fromkeys(accumulate(sizes[:-1], operator.mul)))
    return [outer for outer in found if 1 < outer < size]


def marked(main: Function) -> list[Wanted]:
    """Returns the values that the model marks."""
    found = [(op, chunk) for op in main.ops if (chunk := chunk_of(op)) is not None]
    return [
        Wanted(op.results[0], op.results[0], dim, parts, f"{op.loc}: annotate.chunk")
        for op, (dim, parts) in found
    ]


def matching(main: Function, pin: ChunkPin) -> list[tuple[str, list[str]]]:
    """Returns the modules and values that a pin matches, with the values in question.

    Raises:
        AnnotationError: If it matches nothing.
    """
    found: dict[str, list[str]] = {}
    made = [name for op in main.ops if op.phase == "forward" for name in op.results]
    stored = steady(main)
    known: dict[str, None] = {}
    for name in made:
        parts = name.split(".")
        around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        known.update(dict.fromkeys(around))
        fits = (each for each in around if each == pin.pattern or _fits(pin.pattern, each))
        if (match := next(fits, "")) and (match == name or name not in stored):
            found.setdefault(match, []).append(name)
    if not found:
        raise AnnotationError(
            f"{pin.place}: pattern {pin.pattern!r} matches no module or value of the forward"
            f" pass{near_misses(pin.pattern, known)}"
        )
    return list(found.items())


def steady(main: Function) -> set[str]:
    """Returns the values that depend on nothing but what is stored."""
    found = {name for name in main.inputs if main.values[name].role in STORED_ROLES}
    for op in main.ops:
        if op.operands and found.issuperset(op.operands):
            found.update(op.results)
    return found


def _fits(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)
