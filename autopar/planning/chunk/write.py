"""Writes regions as loops: `loop_take` brings parts, `loop_cat` and `loop_reduce` join them.

Iterations of a loop are alike. Where what is cut doesn't divide, the last, smaller part is no
iteration: its ops are there once more, behind the loop, with sizes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autopar.base.errors import AnnotationError
from autopar.ir import emitted
from autopar.ir.dims import SubDim
from autopar.ir.dtypes import HALVES
from autopar.ir.emitted import Emitted
from autopar.ir.expr.expression import IntExpr
from autopar.ir.layout import Layout
from autopar.ir.memory.accumulating import OVER, in_place
from autopar.ir.memory.kernels import written_arguments
from autopar.ir.ops.loops import CAT, REDUCE, TAKE
from autopar.ir.program import Op, Value
from autopar.planning.chunk.cut import Cut
from autopar.planning.chunk.halo import Held, Read, pieces_of
from autopar.planning.chunk.levels import Level
from autopar.planning.chunk.local import Call, Piece, block_call, local_dist, moved_call, of_nothing
from autopar.planning.chunk.narrow import Narrowing
from autopar.planning.chunk.reach import Reach
from autopar.planning.chunk.region import Region
from autopar.planning.chunk.searching import Searches, Searching
from autopar.planning.chunk.split import Cutting
from autopar.planning.chunk.writer import Writer

Shape = tuple[IntExpr, ...]


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
    _taken: dict[tuple[object, ...], str] = field(default_factory=dict)
    _held: dict[str, Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._searches = Searches(self.to)

    @property
    def cut(self) -> Cut:
        """How the value is cut from which the region grew."""
        return self.region.cuts[self.region.seed]

    def write(self) -> None:
        """Adds the level's loop, and the smaller part."""
        pieces = pieces_of(self.region, self.loop)
        left = [
            (op, at)
            for op in self.level.ops
            for at, name in enumerate(op.results)
            if name not in self.level.again
            and self.region.is_left(name, self.wanted)
            and not self._search(op)
        ]
        alone, made = len(pieces) == 1, list[list[str]]()
        # What a loop leaves is there before the rest begins.
        for piece in pieces:
            self._held[piece.suffix] = Held(self.region, self.level, self.wanted, piece)
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

    def _copy(self, op: Op, piece: Piece) -> None:
        """Adds an op as an iteration has it."""
        found = self.region.ops[op.results]
        operands = [
            name if need is None else self._operand(op, at, need, piece)
            for at, (name, need) in enumerate(zip(op.operands, found.operands, strict=True))
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
            local_op = found.local(op, piece.at)
            return replace(local_op, phase=self._phase(op), dist=None)
        held, axis = self._held[piece.suffix], self.region.loop
        reach = held.ops[op.results]
        if held.is_block(op):
            call: Call | None = block_call(found, op.kind, axis, self.cut.parts, piece)
        else:
            call = moved_call(found, op.kind, reach, piece)
        assert call is not None
        kind, args = call
        plan = (*op.plan, *of_nothing(found, self.cut.size(piece.at)))
        local_op = replace(op.with_args(args), kind=kind, phase=self._phase(op), plan=plan)
        if len(op.results) == 1 and written_arguments(kind):
            local_op = replace(local_op, plan=(*local_op.plan, (OVER, "operand")))
        return replace(local_op, dist=local_dist(op, found, reach.length))

    def _operand(self, op: Op, at: int, need: Cut, piece: Piece) -> str:
        """Returns the name of what an iteration needs of an operand, taken now if need be."""
        name, held = op.operands[at], self._held[piece.suffix]
        read = held.read(op, at)
        is_own = self.region.cuts.get(name) == need and (name, piece.suffix) in self._names
        have = held.values[name] if is_own else held.own(need)
        if read.reach.is_same(have, piece.iterations):
            if is_own:
                return self._names[name, piece.suffix]
            key: tuple[object, ...] = (name, need, piece.suffix)
            if key not in self._taken:
                self._taken[key] = self._take(op, name, need, piece)
            return self._taken[key]
        key = (name, need.dim, read, piece.suffix)
        if key not in self._taken:
            start = self._names[name, piece.suffix] if is_own else name
            self._taken[key] = self._window(op, start, need, read, piece, have if is_own else None)
        return self._taken[key]

    def _window(
        self, op: Op, name: str, cut: Cut, read: Read, piece: Piece, since: Reach | None
    ) -> str:
        """Adds what takes the elements that a window reads of what an iteration has, or of all.

        Args:
            op: The op that reads them.
            name: What they are taken of.
            cut: How iterations share it.
            read: Which elements.
            piece: The piece.
            since: What an iteration has; None of all.
        """
        to, value = self.to, self.to.values[name]
        inside = self._inside(replace(op, phase=self._phase(op)), piece)
        low, length = piece.begin(read.reach, since), read.reach.length
        shape = _with(value, cut.dim, length)
        new = to.fresh(f"{name}.window")
        made = emitted.window(cut.dim, low, low + length, read.fill)
        self._pin(to.write(made, inside, name, new, shape), value, cut)
        return new

    def _take(self, op: Op, name: str, cut: Cut, piece: Piece) -> str:
        """Adds what takes a part of a value."""
        to, value = self.to, self.to.values[name]
        like = replace(op, phase=self._phase(op))
        start, dim = name, cut.dim + (cut.outer != 1)
        wide = _with(value, cut.dim, *_sides(cut, cut.inner))
        if cut.outer != 1:
            start = to.write(emitted.view(wide), like, start, to.fresh(f"{name}.sides"), wide)
        size, low = cut.size(piece.at), cut.start(piece.at)
        high = low + piece.trip * size
        part = to.fresh(f"{name}.{piece.suffix}")
        if (low, high) != (0, cut.inner):
            shape = _with_size(wide, dim, high - low)
            begun = part if not piece.loop else to.fresh(f"{name}.first")
            start = to.write(emitted.slice_(low, high, dim), like, start, begun, shape)
        if piece.loop:
            shape = _with_size(wide, dim, size)
            taken = Emitted(TAKE, (("trip", piece.trip), ("dim", dim), ("loop", piece.loop)))
            start = to.write(taken, like, start, part, shape)
        if cut.outer != 1:
            shape = _with(value, cut.dim, cut.outer * size)
            inside = self._inside(like, piece)
            start = to.write(emitted.view(shape), inside, start, to.fresh(f"{part}.flat"), shape)
        if start != name:
            self._pin(start, value, cut)
        return start

    def _result(self, name: str, found: Cutting, at: int, piece: Piece) -> str:
        """Returns the name of what an iteration leaves of a result."""
        value, part = self.region.main.values[name], found.results[at]
        is_left = self.region.is_left(name, self.wanted)
        plain = piece.suffix == "part" and not is_left and name not in self.level.again
        new = name if plain else self.to.fresh(f"{name}.{piece.suffix}")
        shape = value.shape
        if isinstance(part, Cut):
            size = self._held[piece.suffix].values[name].length
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
        held = self._held[piece.suffix]
        own, have = held.own(cut), held.values[name]
        if not own.is_same(have, piece.iterations):
            part = self._window(op, part, cut, Read(own, 0), piece, have)
        dim, size = cut.dim + (cut.outer != 1), own.length
        shape = _with(value, cut.dim, *_sides(cut, size))
        if cut.outer != 1:
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
        for number, part in enumerate(parts[1:], 2):
            is_last = number == len(parts) and wide == value.dtype
            new = name if is_last else to.fresh(f"{name}.total")
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
            made = emitted.cat(parts, cut.dim + (cut.outer != 1)).instead_of(op, whole)
            to.ops.append(replace(made, dist=None, origin=None, plan=()))
        if cut.outer != 1:
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


def _sides(cut: Cut, size: IntExpr) -> Shape:
    return (cut.outer, size) if cut.outer != 1 else (size,)


def _with(value: Value, dim: int, *sizes: IntExpr) -> Shape:
    shape = value.shape
    return (*shape[:dim], *sizes, *shape[dim + 1 :])


def _with_size(shape: Shape, dim: int, size: IntExpr) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])
