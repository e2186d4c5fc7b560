"""Protobuf message -> Program. `_ProgramReader` has a method per class of the IR.

Nothing in a message is trusted: every reference is checked, so that a damaged file is reported
where it is read and not where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from autopar.base.errors import UNKNOWN, AnnotationError, Loc
from autopar.ir import program_pb2 as pb
from autopar.ir.dims import DimLayout, SubDim
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import Binary, Coord, Expr, IntExpr, Size
from autopar.ir.expr.relation import SIGNS, Relation
from autopar.ir.layout import MONOIDS, Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import (
    LEVELS,
    MICROBATCH,
    PHASES,
    ROLES,
    Arg,
    BoxDim,
    DType,
    Example,
    Function,
    Loops,
    Op,
    OpDist,
    Part,
    Pending,
    Port,
    Program,
    Ref,
    Signature,
    Value,
)
from autopar.ir.serde.tables import (
    Corrupt,
    StringReader,
    array_size,
    entry,
    extent_of_binary,
    in_groups_of_two,
    ints_from_proto,
    note_open,
)
from autopar.ir.serde.write import EXPR_KINDS

Item = TypeVar("Item")
Message = TypeVar("Message")

_OPERATORS = {int(kind): op for op, kind in EXPR_KINDS.items()}


def program_from_proto(message: pb.Program) -> Program:
    """Returns the program that a message describes.

    Raises:
        Corrupt: If the message contradicts itself or names something unknown.
    """
    return _ProgramReader(message).program(message)


def loc_from_proto(loc: pb.Loc, strings: StringReader) -> Loc:
    """Returns a source location."""
    return Loc(strings.text(loc.file), loc.line, strings.text(loc.name))


class _ProgramReader:
    def __init__(self, message: pb.Program) -> None:
        self._strings = StringReader(message.strings)
        self._text = self._strings.text
        self._locs = [UNKNOWN, *(loc_from_proto(loc, self._strings) for loc in message.locs)]
        self._origins = [Origin(self._text(o.kind), self._text(o.detail)) for o in message.origins]
        self._exprs = _ExprTable(message.exprs, self._text)
        self._size = self._exprs.size
        self._meshes: list[ProcessMesh] = []
        for mesh in message.meshes:
            self._meshes.append(self._mesh(mesh))
        self._layouts = [self._layout(layout) for layout in message.layouts]
        self._op_dists = [self._op_dist(dist) for dist in message.op_dists]

    def program(self, message: pb.Program) -> Program:
        functions = [self._function(function) for function in message.functions]
        return Program(
            functions=_by_name(functions, [function.name for function in functions], "function"),
            signature=Signature(
                tuple(self._port(port) for port in message.signature.inputs),
                tuple(self._port(port) for port in message.signature.outputs),
            ),
            mesh=_optional(self._meshes, message.mesh, "mesh"),
            level=self._word(message.level, LEVELS, "level"),
            name=self._text(message.name),
            example=self._example(message.example) if message.HasField("example") else None,
            relations=tuple(map(self._relation, message.relations)),
        )

    def _example(self, example: pb.Example) -> Example:
        return Example(
            self._named(example.given),
            self._named(example.defaults),
            tuple(map(self._text, example.arguments)),
        )

    def _relation(self, relation: pb.Relation) -> Relation:
        return Relation(
            self._size(relation.left),
            self._word(relation.sign, SIGNS, "relation"),
            self._size(relation.right),
            entry(self._locs, relation.loc, "location"),
        )

    def _named(self, args: Iterable[pb.Arg]) -> tuple[tuple[str, Arg], ...]:
        return tuple((self._text(arg.name), self._arg(arg, ())) for arg in args)

    def _word(self, number: int, known: Iterable[str], what: str, default: str = "") -> str:
        word = self._text(number) if number or not default else default
        if word not in known:
            raise Corrupt(f"unknown {what} {word!r}")
        return word

    def _mesh(self, message: pb.Mesh) -> ProcessMesh:
        parent = _optional(self._meshes, message.parent, "mesh")
        form = message.WhichOneof("form")
        try:
            if form == "array":
                return self._array(message.array, parent)
            if form == "slice" and parent is not None:
                where, first = message.slice, message.slice.index
                run = range(first, first + where.length) if where.length else None
                return parent.part(self._text(where.axis), run or (first, *where.others))
        except AnnotationError as error:
            raise Corrupt(str(error)) from error
        raise Corrupt("a mesh is neither an array of processes nor a slice of another mesh")

    def _array(self, array: pb.Mesh.Array, parent: ProcessMesh | None) -> ProcessMesh:
        shape = tuple(array.shape)
        ids = ints_from_proto(array.ids, "mesh")
        if array_size(shape, "mesh") != len(ids):
            raise Corrupt(f"a mesh of shape {list(shape)} has {len(ids)} processes")
        names = [self._text(number) for number in array.dim_names]
        return ProcessMesh.of_ids(ids, shape, names, parent)

    def _dim(self, dim: pb.Dim) -> DimLayout:
        return tuple(
            SubDim(self._size(sub.size), tuple(self._text(axis) for axis in sub.axes))
            for sub in dim.sub_dims
        )

    def _layout(self, layout: pb.Layout) -> Layout:
        partial = self._strings.pairs(layout.partial, "partial")
        for _, monoid in partial:
            _check_monoid(monoid)
        return Layout(
            mesh=entry(self._meshes, layout.mesh - 1, "mesh"),
            dims=tuple(self._dim(dim) for dim in layout.dims),
            partial=partial,
            mask=ints_from_proto(layout.mask, "mask") if layout.HasField("mask") else None,
            offload=self._text(layout.offload),
        )

    def _op_dist(self, dist: pb.OpDist) -> OpDist:
        return OpDist(
            mesh=entry(self._meshes, dist.mesh - 1, "mesh"),
            factors=tuple((self._text(f.name), self._dim(f.dim)) for f in dist.factors),
            body=self._text(dist.body),
            pending=tuple(self._pending(pending) for pending in dist.pending),
        )

    def _pending(self, pending: pb.OpDist.Pending) -> Pending:
        monoid = self._text(pending.monoid)
        _check_monoid(monoid)
        return Pending(self._text(pending.axis), monoid, tuple(pending.operands))

    def _function(self, message: pb.Function) -> Function:
        values = [self._value(value) for value in message.values]
        names = [value.name for value in values]
        name = self._text(message.name)

        def places(positions: Iterable[int]) -> tuple[str, ...]:
            return tuple(entry(names, at, f"value of function {name}") for at in positions)

        return Function(
            name=name,
            inputs=places(message.inputs),
            outputs=places(message.outputs),
            values=_by_name(values, names, f"value of function {name}"),
            ops=tuple(self._op(op, names) for op in message.ops),
            aliases=tuple(in_groups_of_two(places(message.aliases), "aliases")),
        )

    def _value(self, value: pb.Value) -> Value:
        return Value(
            name=self._text(value.name),
            dtype=self._word(value.dtype, DTYPE_BYTES, "dtype"),
            shape=tuple(n if n >= 0 else self._size(n) for n in value.shape),
            role=self._word(value.role, ROLES, "role", "activation"),
            dist=_optional(self._layouts, value.layout, "layout"),
            origin=_optional(self._origins, value.origin, "origin"),
            loc=entry(self._locs, value.loc, "location"),
        )

    def _op(self, op: pb.Op, names: Sequence[str]) -> Op:
        return Op(
            kind=self._text(op.kind),
            args=tuple((self._text(arg.name), self._arg(arg, names)) for arg in op.args),
            results=tuple(entry(names, at, "value") for at in op.results),
            dist=_optional(self._op_dists, op.dist, "choice"),
            origin=_optional(self._origins, op.origin, "origin"),
            loc=entry(self._locs, op.loc, "location"),
            stage=op.stage,
            microbatch=op.microbatch,
            loops=self._loops(op),
            phase=self._word(op.phase, PHASES, "phase", "forward"),
            plan=self._strings.pairs(op.plan, "plan"),
        )

    def _loops(self, op: pb.Op) -> Loops:
        if op.times:
            return ((MICROBATCH, op.times),)
        names = (self._text(number) for number in op.loops[::2])
        return tuple(zip(names, op.loops[1::2], strict=True))

    def _arg(self, arg: pb.Arg, names: Sequence[str]) -> Arg:
        form = arg.WhichOneof("form")
        if form is None:
            return None
        read = _ARG_READERS.get(form)
        return read(arg) if read else self._arg_in_context(arg, form, names)

    def _arg_in_context(self, arg: pb.Arg, form: str, names: Sequence[str]) -> Arg:
        if form == "ref":
            return Ref(entry(names, arg.ref, "value"))
        if form == "refs":
            return tuple(Ref(entry(names, at, "value")) for at in arg.refs.items)
        if form == "list":
            return tuple(self._arg(item, names) for item in arg.list.items)
        if form == "text":
            return self._text(arg.text)
        if form == "expr":
            return self._exprs.expr(arg.expr)
        return DType(self._word(arg.dtype, DTYPE_BYTES, "dtype"))

    def _port(self, port: pb.Signature.Port) -> Port:
        box = tuple(
            tuple(
                BoxDim(self._size(sub.size), self._size(sub.start), self._size(sub.length))
                for sub in dim.sub_dims
            )
            for dim in port.box
        )
        return Port(
            name=self._text(port.name),
            label=self._text(port.label),
            dtype=self._word(port.dtype, DTYPE_BYTES, "dtype"),
            shape=tuple(map(self._size, port.shape)),
            role=self._word(port.role, ROLES, "role"),
            box=box,
            fill=_number(port.fill) if port.HasField("fill") else None,
            aliases=tuple(map(self._text, port.aliases)),
            part=self._part(port.part) if port.HasField("part") else None,
            options=self._named(port.options),
        )

    def _part(self, part: pb.Signature.Part) -> Part:
        return Part(self._text(part.of), tuple(part.shape), tuple(part.start))


def _number(number: float) -> float:
    # One NaN object for all: tuples compare by identity first, so programs compare equal.
    return math.nan if math.isnan(number) else number


_ARG_READERS: Mapping[str, Callable[[pb.Arg], Arg]] = {
    "boolean": lambda arg: arg.boolean,
    "integer": lambda arg: arg.integer,
    "number": lambda arg: _number(arg.number),
    "complex": lambda arg: complex(arg.complex.real, arg.complex.imag),
    "integers": lambda arg: tuple(arg.integers.items),
    "big_integer": lambda arg: int.from_bytes(arg.big_integer, "big", signed=True),
}


class _ExprTable:
    """Rank expressions by number. Bounds their size, so that none is too deep to evaluate."""

    def __init__(self, messages: Iterable[pb.Expr], text: Callable[[int], str]) -> None:
        self._text = text
        self._exprs: list[IntExpr] = []
        self._extent: list[tuple[int, int]] = []  # depth and number of nodes, written out
        self._open: dict[str, Size] = {}
        for message in messages:
            expr, extent = self._read(message)
            self._exprs.append(expr)
            self._extent.append(extent)

    def size(self, number: int) -> IntExpr:
        """Returns a size: the number itself, or the expression of a negative number."""
        return number if number >= 0 else entry(self._exprs, -number - 1, "expression")

    def expr(self, number: int) -> Expr:
        """Returns the expression of a number."""
        found = entry(self._exprs, number - 1, "expression")
        if isinstance(found, int):
            raise Corrupt(f"expression {number} is the plain number {found}")
        return found

    def _read(self, message: pb.Expr) -> tuple[IntExpr, tuple[int, int]]:
        if message.kind == pb.Expr.CONSTANT:
            return message.constant, (1, 1)
        if message.kind == pb.Expr.COORD:
            return Coord(self._text(message.axis)), (1, 1)
        if message.kind == pb.Expr.SIZE:
            return self._open_size(message), (1, 1)
        op = _OPERATORS.get(message.kind)
        if op is None:
            raise Corrupt(f"unknown kind of expression {message.kind}")
        lhs, rhs = self.size(message.lhs), self.size(message.rhs)
        extent = extent_of_binary(self._extent_of(message.lhs), self._extent_of(message.rhs))
        return Binary(op, lhs, rhs), extent

    def _open_size(self, message: pb.Expr) -> Size:
        name = self._text(message.name)
        size = Size(name, message.least, message.most, message.planned, message.step or 1)
        note_open(size, self._open)
        return size

    def _extent_of(self, number: int) -> tuple[int, int]:
        return (1, 1) if number >= 0 else self._extent[-number - 1]


def _optional(table: Sequence[Item], number: int, what: str) -> Item | None:
    return entry(table, number - 1, what) if number else None


def _by_name(items: Sequence[Item], names: Sequence[str], what: str) -> dict[str, Item]:
    named = dict(zip(names, items, strict=True))
    if len(named) < len(items):
        twice = next(name for name in names if names.count(name) > 1)
        raise Corrupt(f"more than one {what} is called {twice!r}")
    return named


def _check_monoid(monoid: str) -> None:
    if monoid not in MONOIDS:
        raise Corrupt(f"unknown reduction {monoid!r}")
