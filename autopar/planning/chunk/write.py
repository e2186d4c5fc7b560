"""Writes regions as loops: `loop_take` brings parts, `loop_cat` and `loop_reduce` join them.

Iterations of a loop are alike. Where what is cut doesn't divide, the last, smaller part is no
iteration: its ops are there once more, behind the loop, with sizes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autopar.base.errors import AnnotationError
from autopar.ir import emitted
from autopar.ir.dims import SubDim
from autopar.ir.dtypes import HALVES
from autopar.ir.emitted import Emitted
from autopar.ir.expr.expression import Coord, Expr, axes_of, evaluate, substitute
from autopar.ir.layout import Layout
from autopar.ir.memory.accumulating import OVER, in_place
from autopar.ir.memory.kernels import written_arguments
from autopar.ir.ops.loops import CAT, REDUCE, TAKE
from autopar.ir.program import Arg, Op, OpDist, Value
from autopar.ir.rules.distribution import rank_call
from autopar.planning.chunk.narrow import Narrowing
from autopar.planning.chunk.region import Level, Region
from autopar.planning.chunk.searching import Searches, Searching
from autopar.planning.chunk.split import Cut, Cutting
from autopar.planning.chunk.writer import Piece, Writer


@dataclass
class LoopWriter:
    """Writes one level of a region.

    Attributes:
        region: The region.
        loop: The name of the loop.
        level: What is in the loop.
        wanted: What other levels read, put together.
        to: Where ops are added.
    """

    region: Region
    loop: str
    level: Level
    wanted: frozenset[str]
    to: Writer
    _names: dict[tuple[str, str], str] = field(default_factory=dict)
    _taken: dict[tuple[str, Cut, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._searches = Searches(self.to)

    @property
    def cut(self) -> Cut:
        """How the value is cut from which the region grew."""
        return self.region.cuts[self.region.seed]

    def write(self) -> None:
        """Adds the level's loop, and the smaller part."""
        full, parts = self.cut.full, self.cut.parts
        pieces = [Piece(self.loop if full > 1 else "", 0, full, "part")]
        if parts > full:
            pieces.append(Piece("", full, 1, "rest"))
        left = [
            (op, at)
            for op in self.level.ops
            for at, name in enumerate(op.results)
            if name not in self.level.again and self._is_read(name) and not self._search(op)
        ]
        alone, made = len(pieces) == 1, list[list[str]]()
        # What a loop leaves is there before the rest begins.
        for piece in pieces:
            for op in self.level.ops:
                self._copy(op, piece)
            made.append([self._left(op, at, piece, alone=alone) for op, at in left])
        for (op, at), lefts in zip(left, zip(*made, strict=True), strict=True):
            self._join(op, at, lefts)
        for op in self.level.ops:
            if (found := self._search(op)) is not None:
                self._searches.join(op, found.block)

    def _search(self, op: Op) -> Searching | None:
        found = self.region.ops[op.results]
        return found if isinstance(found, Searching) else None

    def _is_read(self, name: str) -> bool:
        """Whether anything else reads a result as a whole."""
        return name in self.wanted or self.region.is_read(name)

    def _copy(self, op: Op, piece: Piece) -> None:
        """Adds an op as an iteration has it."""
        found = self.region.ops[op.results]
        operands = [
            self._operand(op, name, need, piece)
            for name, need in zip(op.operands, found.operands, strict=True)
        ]
        if isinstance(found, Searching):
            self._searches.add(op, operands[0], piece, self._inside(op, piece))
            return
        results = [self._result(name, found, at, piece) for at, name in enumerate(op.results)]
        copy = self._local(op, found, piece).with_operands(operands)
        self.to.ops.append(self._inside(replace(copy, results=tuple(results)), piece))

    def _phase(self, op: Op) -> str:
        """Returns the phase of an op: what is computed again is in that of those who need it."""
        if op.phase != "forward" or self.level.again.isdisjoint(op.results):
            return op.phase
        return next(
            each.phase for each in self.level.ops if each.results[0] not in self.level.again
        )

    def _inside(self, op: Op, piece: Piece) -> Op:
        loops = (*op.loops, (piece.loop, piece.trip)) if piece.loop else op.loops
        return replace(op, loops=loops)

    def _local(self, op: Op, found: Cutting, piece: Piece) -> Op:
        """Returns an op with the arguments and the choice that it has for a part."""
        if isinstance(found, Narrowing):
            local_op = found.local(op, is_rest=piece.suffix == "rest")
            return replace(local_op, phase=self._phase(op), dist=None)
        axis = self.region.loop
        kind, args = rank_call(found.rule, found.dist(axis, self.cut.parts), op.kind)
        local = {name: _at(arg, axis, piece) for name, arg in args.items()}
        local_op = replace(op.with_args(local), kind=kind, phase=self._phase(op))
        if len(op.results) == 1 and written_arguments(kind):
            local_op = replace(local_op, plan=(*local_op.plan, (OVER, "operand")))
        return replace(local_op, dist=_dist(op, found, piece, self.cut))

    def _operand(self, op: Op, name: str, need: Cut | None, piece: Piece) -> str:
        """Returns the name of what an iteration needs of an operand, taken now if need be."""
        if need is None:
            return name
        is_own = self.region.cuts.get(name) == need
        if is_own and (name, piece.suffix) in self._names:
            return self._names[name, piece.suffix]
        key = (name, need, piece.suffix)
        if key not in self._taken:
            self._taken[key] = self._take(op, name, need, piece)
        return self._taken[key]

    def _take(self, op: Op, name: str, cut: Cut, piece: Piece) -> str:
        """Adds what takes a part of a value."""
        to, value = self.to, self.to.values[name]
        like = replace(op, phase=self._phase(op))
        start, dim = name, cut.dim + (cut.outer > 1)
        wide = _with(value, cut.dim, *_sides(cut, cut.inner))
        if cut.outer > 1:
            start = to.write(emitted.view(wide), like, start, to.fresh(f"{name}.sides"), wide)
        size = cut.block if piece.trip > 1 or piece.first < cut.full else cut.rest
        low, high = piece.first * cut.block, piece.first * cut.block + piece.trip * size
        part = to.fresh(f"{name}.{piece.suffix}")
        if (low, high) != (0, cut.inner):
            shape = _with_size(wide, dim, high - low)
            begun = part if not piece.loop else to.fresh(f"{name}.first")
            start = to.write(emitted.slice_(low, high, dim), like, start, begun, shape)
        if piece.loop:
            shape = _with_size(wide, dim, size)
            taken = Emitted(TAKE, (("trip", piece.trip), ("dim", dim), ("loop", piece.loop)))
            start = to.write(taken, like, start, part, shape)
        if cut.outer > 1:
            shape = _with(value, cut.dim, cut.outer * size)
            inside = self._inside(like, piece)
            start = to.write(emitted.view(shape), inside, start, to.fresh(f"{part}.flat"), shape)
        if start != name:
            self._pin(start, value, cut)
        return start

    def _result(self, name: str, found: Cutting, at: int, piece: Piece) -> str:
        """Returns the name of what an iteration leaves of a result."""
        value, part = self.region.main.values[name], found.results[at]
        plain = piece.suffix == "part" and not self._is_read(name) and name not in self.level.again
        new = name if plain else self.to.fresh(f"{name}.{piece.suffix}")
        shape = value.shape
        if isinstance(part, Cut):
            size = part.block if piece.suffix == "part" else part.rest
            shape = _with(value, part.dim, part.outer * size)
            self._names[name, piece.suffix] = new
        self.to.values[new] = replace(
            value, name=new, shape=shape, role="activation", dist=None, origin=None
        )
        if isinstance(part, Cut):
            self._pin(new, value, part)
        else:
            self._names[name, piece.suffix] = new
        return new

    def _left(self, op: Op, at: int, piece: Piece, *, alone: bool) -> str:
        """Adds what a piece leaves of a result; returns its name.

        Args:
            op: The op.
            at: The result's position.
            piece: The piece.
            alone: Whether there is no other one.
        """
        name, cut = op.results[at], self.region.ops[op.results].results[at]
        value, part = self.region.main.values[name], self._names[op.results[at], piece.suffix]
        to, inside = self.to, self._inside(op, piece)
        if not isinstance(cut, Cut):
            wide = _wide(value, cut)
            if wide != value.dtype:
                new = to.fresh(f"{part}.{wide}")
                part = to.write(emitted.to_dtype(wide), inside, part, new, value.shape, wide)
            if piece.loop:
                new = name if alone and wide == value.dtype else to.fresh(f"{name}.{cut}")
                reduced = Emitted(REDUCE, (("monoid", cut),))
                part = to.write(reduced, inside, part, new, value.shape)
            return part
        dim, size = cut.dim + (cut.outer > 1), cut.block if piece.suffix == "part" else cut.rest
        shape = _with(value, cut.dim, *_sides(cut, size))
        if cut.outer > 1:
            new = to.fresh(f"{part}.sides")
            part = to.write(emitted.view(shape), inside, part, new, shape)
        if piece.loop:
            new = name if alone and cut.outer == 1 else to.fresh(f"{name}.all")
            together = Emitted(CAT, (("trip", piece.trip), ("dim", dim)))
            shape = _with_size(shape, dim, piece.trip * size)
            part = to.write(together, inside, part, new, shape)
        return part

    def _join(self, op: Op, at: int, parts: Sequence[str]) -> None:
        """Adds what makes a whole of what pieces leave of a result."""
        name, cut = op.results[at], self.region.ops[op.results].results[at]
        value, to = self.region.main.values[name], self.to
        if isinstance(cut, Cut):
            self._put_together(op, name, cut, parts)
            return
        wide, total = _wide(value, cut), parts[0]
        for part in parts[1:]:
            new = name if wide == value.dtype else to.fresh(f"{name}.total")
            total = to.write(emitted.combine(cut, part, wide), op, total, new, value.shape)
            to.ops[-1] = replace(to.ops[-1], plan=(in_place(cut, name),))
        if total != name:
            to.write(emitted.to_dtype(value.dtype), op, total, name, value.shape, value.dtype)

    def _put_together(self, op: Op, name: str, cut: Cut, parts: Sequence[str]) -> None:
        to, value = self.to, self.region.main.values[name]
        whole = parts[0]
        if len(parts) > 1:
            whole = name if cut.outer == 1 else to.fresh(f"{name}.wide")
            wide = _with(value, cut.dim, *_sides(cut, cut.inner))
            to.values.setdefault(
                whole, replace(value, name=whole, shape=wide, dist=None, origin=None)
            )
            made = emitted.cat(parts, cut.dim + (cut.outer > 1)).instead_of(op, whole)
            to.ops.append(replace(made, dist=None, origin=None, plan=()))
        if cut.outer > 1:
            shape = _with(value, cut.dim, cut.outer * cut.inner)
            to.write(emitted.view(shape), op, whole, name, shape)

    def _pin(self, name: str, value: Value, cut: Cut) -> None:
        """Pins what an iteration has of a value as the value is pinned.

        Raises:
            AnnotationError: If the dimension that is cut is pinned in sub-dimensions.
        """
        if value.dist is None:
            return
        new = self.to.values[name]
        dim, size = value.dist.dims[cut.dim], new.shape[cut.dim]
        if len(dim) > 1:
            raise AnnotationError(
                f"{value.loc}: %{value.name} is pinned within a dimension that {self.region.loop!r}"
                " cuts in chunks; pin the dimension as a whole, or make no chunks of it"
            )
        dims = (*value.dist.dims[: cut.dim], (SubDim(size, dim[0].axes),))
        layout: Layout = replace(value.dist, dims=(*dims, *value.dist.dims[cut.dim + 1 :]))
        self.to.values[name] = replace(new, dist=layout, origin=value.origin)


def _wide(value: Value, monoid: str) -> str:
    """Returns the dtype in which a value is reduced: halves are rounded once, if at all."""
    exact = monoid not in ("sum", "prod")
    return "f32" if value.dtype in HALVES and not exact else value.dtype


def _sides(cut: Cut, size: int) -> tuple[int, ...]:
    return (cut.outer, size) if cut.outer > 1 else (size,)


def _with(value: Value, dim: int, *sizes: int) -> tuple[int, ...]:
    shape = value.known_shape
    return (*shape[:dim], *sizes, *shape[dim + 1 :])


def _with_size(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _dist(op: Op, found: Cutting, piece: Piece, cut: Cut) -> OpDist | None:
    """Returns the choice that is pinned for an op, of a part of it.

    Raises:
        AnnotationError: If a factor that is cut is pinned in sub-dimensions.
    """
    chosen = None if op.dist is None else op.dist.factor(found.factor)
    if op.dist is None or chosen is None:
        return op.dist
    if len(chosen) > 1 or len(found.layout) > 1:
        raise AnnotationError(f"{op.loc}: {op.kind} is pinned within what chunks cut")
    parts = cut.parts
    block = -(-found.layout[0].size // parts)  # type: ignore[operator]
    size = block if piece.suffix == "part" else found.layout[0].size - piece.first * block
    factors = tuple(
        (name, (SubDim(size, dim[0].axes),) if name == found.factor else dim)
        for name, dim in op.dist.factors
    )
    return replace(op.dist, factors=factors)


def _at(arg: Arg, axis: str, piece: Piece) -> Arg:
    """Returns an argument as it is in a piece: of a loop, as a linear function of the iteration."""
    if isinstance(arg, tuple):
        return tuple(_at(item, axis, piece) for item in arg)
    if not isinstance(arg, Expr):
        return arg
    if not piece.loop:
        return substitute(arg, {axis: piece.first})
    # Of a loop around it, it may depend too.
    others = dict.fromkeys(axes_of(arg) - {axis}, 0)
    first, second = (evaluate(arg, {**others, axis: at}) for at in (0, 1))
    linear: Callable[[int], int] = lambda at: first + at * (second - first)  # noqa: E731
    if any(evaluate(arg, {**others, axis: at}) != linear(at) for at in range(piece.trip)):
        return arg
    return substitute(arg, {axis: 0}) + Coord(piece.loop) * (second - first)
