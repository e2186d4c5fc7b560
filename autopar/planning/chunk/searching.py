"""Searches for an extremum, and where it is, along what is cut.

Each iteration finds one, and where it is within its part. Among these the first is found that is as
good as any, and so is the part that it is in:

    %found.all: f32[8, 64], %at.all: i64[8, 64]         of 8 parts
    %found: f32[64], %part: i64[64] = aten.max.dim(self=%found.all, dim=0)
    %at = (%at.all of that part) + %part * block

Nothing is computed again for it, so it doesn't matter how that would be rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.ir import emitted
from autopar.ir.emitted import Emitted
from autopar.ir.ops import rule_of
from autopar.ir.ops.loops import STACK
from autopar.ir.ops.reduce.arg_reduction import WITH_EXTREMA
from autopar.ir.program import Arg, Op, Ref, Value
from autopar.planning.chunk.cut import Cut, known
from autopar.planning.chunk.local import Piece
from autopar.planning.chunk.split import Cutting
from autopar.planning.chunk.writer import Writer

_FOUND = "found"
"""In the place of a cut: what is found among all parts."""


@dataclass(frozen=True)
class Searching(Cutting):
    """A search along what iterations share."""

    @property
    def block(self) -> int:
        """How many elements an iteration has."""
        return known(self.own.runs[0].block)


def searching_of(op: Op, values: Mapping[str, Value], cut: Cut, operand: int) -> Searching | None:
    """Returns a search as iterations share it; None of what is none along what is cut.

    Args:
        op: The op.
        values: Those of its function.
        cut: Of its operand.
        operand: -1 if the cut is that of a result.
    """
    rule = rule_of(op, values) if op.kind in WITH_EXTREMA and operand == 0 else None
    dim = op.arg("dim", -1 if len(op.results) > 1 else None)
    if rule is None or not isinstance(dim, int) or cut.outer != 1 or not cut.is_known:
        return None
    (dims,) = rule.operands
    if dim % len(dims) != cut.dim:
        return None
    results = (_FOUND,) * len(op.results)
    return Searching(rule, dims[cut.dim][0], cut, (), (cut,), results)


class Searches:
    """Writes the searches of one loop, and of what is behind it.

    Args:
        to: Where ops are added.
    """

    def __init__(self, to: Writer) -> None:
        self._to = to
        self._parts: dict[str, list[tuple[str, str]]] = {}

    def add(self, op: Op, operand: str, piece: Piece, inside: Op) -> None:
        """Adds the search of an iteration, and what makes its results those of a part of several.

        Args:
            op: The search of the whole.
            operand: What the iteration has of what is searched.
            piece: Where it stands.
            inside: Like what it is written.
        """
        to, index = self._to, self._to.values[op.results[-1]]
        extremum = to.fresh(f"{index.name}.extremum.{piece.suffix}")
        at = to.fresh(f"{index.name}.{piece.suffix}")
        self._search(inside, operand, op.args[1:], (extremum, at))
        shape = (piece.trip, *index.shape)
        one = Emitted(STACK, (("trip", piece.trip),)) if piece.loop else emitted.view(shape)
        whole = (to.fresh(f"{name}.all") for name in (extremum, at))
        named = zip((extremum, at), whole, strict=True)
        first, second = (to.write(one, inside, name, new, shape) for name, new in named)
        self._parts.setdefault(index.name, []).append((first, second))

    def join(self, op: Op, block: int) -> None:
        """Adds the search among what all iterations have found.

        Args:
            op: The search of the whole.
            block: How many elements an iteration has.
        """
        to, index = self._to, self._to.values[op.results[-1]]
        name, shape, one = index.name, index.shape, (1, *index.shape)
        found = zip(*self._parts[name], strict=True)
        extrema, places = (self._together(op, parts) for parts in found)
        extremum = op.results[0] if len(op.results) > 1 else to.fresh(f"{name}.extremum")
        part = to.fresh(f"{name}.in")
        self._search(op, extrema, (("dim", 0),), (extremum, part))
        index_of = to.write(emitted.view(one), op, part, to.fresh(f"{part}.one"), one)
        at = to.write(emitted.gather(index_of, 0), op, places, to.fresh(f"{name}.near"), one)
        at = to.write(emitted.view(shape), op, at, to.fresh(f"{name}.within"), shape)
        first = to.write(emitted.times(block), op, part, to.fresh(f"{name}.first"), shape)
        to.write(emitted.combine("sum", first, index.dtype), op, at, name, shape)

    def _search(
        self, like: Op, operand: str, args: Sequence[tuple[str, Arg]], results: tuple[str, str]
    ) -> None:
        """Adds a search of both an extremum and its index."""
        to, index = self._to, self._to.values[like.results[-1]]
        dtypes = to.values[operand].dtype, index.dtype
        for name, dtype in zip(results, dtypes, strict=True):
            new = replace(index, name=name, dtype=dtype, role="activation", dist=None, origin=None)
            to.values.setdefault(name, new)
        op = replace(like, kind=WITH_EXTREMA[like.kind], results=results, dist=None, origin=None)
        to.ops.append(replace(op, args=(("self", Ref(operand)), *args), plan=()))

    def _together(self, op: Op, parts: Sequence[str]) -> str:
        """Adds what puts what pieces have found together."""
        if len(parts) == 1:
            return parts[0]
        to = self._to
        old = to.values[parts[0]]
        count = sum(to.values[each].known_shape[0] for each in parts)
        name = to.fresh(f"{old.name}.parts")
        to.values[name] = replace(old, name=name, shape=(count, *old.shape[1:]))
        made = emitted.cat(parts, 0).instead_of(op, name)
        to.ops.append(replace(made, dist=None, origin=None, plan=()))
        return name
