"""What the user wants in parts: values by name, or marked in the model, and how each may be cut."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence

from autopar.annotate import ChunkPin
from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.chunks import chunk_of
from autopar.ir.expr.expression import IntExpr, prod
from autopar.ir.expr.facts import can_exceed
from autopar.ir.ops import rule_of
from autopar.ir.ops.shape.view import RESHAPES
from autopar.ir.program import STORED_ROLES, Function
from autopar.planning.chunk.cut import Cut

_ENDS = re.compile(r"[./]|$")
"""Where the names of modules end in that of a value: `h.0.attn`, of ONNX files `/h.0/attn/Add`."""


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
            if self.dim in (None, dim):
                for outer, inner, unit in dict.fromkeys(((1, size, 1), *_merged(main, size))):
                    if self.parts > 1 and can_exceed(inner, 1):
                        yield Cut.into(self.parts, dim, outer, inner, unit)


def _merged(main: Function, size: IntExpr) -> Iterator[tuple[IntExpr, IntExpr, IntExpr]]:
    """Yields of what views make a dimension of a size: what is in front, is cut, and is behind."""
    for op in main.ops:
        if op.phase == "forward" and op.kind in RESHAPES:
            rule = rule_of(op, main.values)
            if rule is None:
                continue
            for dims in (*rule.operands, *rule.results):
                for dim in dims:
                    sizes = [rule.sizes[name] for name in dim if rule.sizes[name] != 1]
                    if len(sizes) > 1 and prod(sizes) == size:
                        yield from _sides(sizes)


def _sides(sizes: Sequence[IntExpr]) -> Iterator[tuple[IntExpr, IntExpr, IntExpr]]:
    """Yields how a dimension of sub-dimensions is cut along one, or from one on."""
    is_known = all(isinstance(size, int) for size in sizes)
    for at, size in enumerate(sizes):
        outer, behind = prod(sizes[:at]), prod(sizes[at + 1 :])
        yield (outer, size * behind, 1) if is_known else (outer, size, behind)


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
        around = [name[: end.start()] for end in _ENDS.finditer(name) if end.start()]
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
