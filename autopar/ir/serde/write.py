"""Program -> protobuf message. `ProgramWriter` has a method per class of the IR."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from autopar.base.errors import UNKNOWN, Loc
from autopar.ir import program_pb2 as pb
from autopar.ir.dims import DimLayout
from autopar.ir.expr.expression import Binary, Coord, Expr, IntExpr, Size
from autopar.ir.expr.relation import Relation
from autopar.ir.fixed import indices_of
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops.loops import only_microbatches
from autopar.ir.program import (
    CALLS,
    Arg,
    DType,
    Example,
    Function,
    Loops,
    Op,
    OpDist,
    Port,
    Program,
    Ref,
    Value,
    refs,
)
from autopar.ir.serde.tables import StringWriter, extent_of_binary, note_open, write_ints

Item = TypeVar("Item")

EXPR_KINDS: Mapping[str, pb.Expr.Kind] = {
    "+": pb.Expr.ADD,
    "*": pb.Expr.MULTIPLY,
    "//": pb.Expr.FLOORDIV,
    "min": pb.Expr.MIN,
    "max": pb.Expr.MAX,
}

MAX_ARG_DEPTH = 32
"""Levels of lists in an argument. protobuf reads messages that are at most 100 levels deep."""

_INT64 = range(-(1 << 63), 1 << 63)


def write_program(program: Program, message: pb.Program) -> None:
    """Fills the message of a program.

    Equal programs give equal messages: the order of the functions and values in their mappings,
    which equality ignores, has no influence.

    Raises:
        ValueError: If an op or output names a value that the function lacks, or a number is
            outside the format's range.
    """
    _ProgramWriter(message).program(program)


class _Table(Generic[Item]):
    """Numbers distinct items from 1 in order of first use; 0 is None.

    Args:
        write: Adds an item to the table in the message. What the item refers to is numbered
            before, so entries refer backwards only.
    """

    def __init__(self, write: Callable[[Item], object]) -> None:
        self._write = write
        self._numbers: dict[Item, int] = {}
        # Most items are shared objects, and hashing a layout is far slower than an identity.
        self._by_identity: dict[int, tuple[Item, int]] = {}

    def number(self, item: Item | None) -> int:
        if item is None:
            return 0
        if (known := self._by_identity.get(id(item))) is not None:
            return known[1]
        number = self._numbers.get(item)
        if number is None:
            self._write(item)
            number = self._numbers[item] = len(self._numbers) + 1
        self._by_identity[id(item)] = (item, number)
        return number


class _ProgramWriter:
    """Fills a message in place: protobuf copies every message that is handed to a constructor."""

    def __init__(self, message: pb.Program) -> None:
        self._message = message
        self._strings = StringWriter()
        self._string = self._strings.number
        self._locs = _Table(self._loc)
        self._exprs = _Table(self._expr)
        self._extents: dict[IntExpr, tuple[int, int]] = {}
        self._open: dict[str, Size] = {}
        self._meshes = _Table(self._mesh)
        self._layouts = _Table(self._layout)
        self._op_dists = _Table(self._op_dist)
        self._origins = _Table(self._origin)

    def program(self, program: Program) -> None:
        if wrong := [key for key, function in program.functions.items() if key != function.name]:
            raise ValueError(f"function {wrong[0]} is filed under a wrong name")
        message = self._message
        message.name = self._string(program.name)
        message.level = self._string(program.level)
        message.mesh = self._meshes.number(program.mesh)
        for function in functions_in_order(program):
            self._function(function)
        for port in program.signature.inputs:
            self._port(port, message.signature.inputs.add())
        for port in program.signature.outputs:
            self._port(port, message.signature.outputs.add())
        if program.example is not None:
            self._example(program.example, message.example)
        for relation in program.relations:
            self._relation(relation)
        message.strings.extend(self._strings.table())

    def _loc(self, loc: Loc) -> None:
        file, name = self._string(loc.file), self._string(loc.name)
        self._message.locs.add(file=file, line=loc.line, name=name)

    def _loc_number(self, loc: Loc) -> int:
        return self._locs.number(None if loc == UNKNOWN else loc)

    def _origin(self, origin: Origin) -> None:
        kind, detail = self._string(origin.kind), self._string(origin.detail)
        self._message.origins.add(kind=kind, detail=detail)

    def _size(self, size: IntExpr) -> int:
        return size if isinstance(size, int) and size >= 0 else -self._exprs.number(size)

    def _expr(self, expr: IntExpr) -> None:
        if isinstance(expr, int):
            self._message.exprs.add(constant=expr)
        elif isinstance(expr, Coord):
            self._message.exprs.add(kind=pb.Expr.COORD, axis=self._string(expr.axis))
        elif isinstance(expr, Size):
            self._open_size(expr)
        elif isinstance(expr, Binary):
            lhs, rhs = self._size(expr.lhs), self._size(expr.rhs)
            self._extents[expr] = extent_of_binary(self._extent(expr.lhs), self._extent(expr.rhs))
            self._message.exprs.add(kind=EXPR_KINDS[expr.op], lhs=lhs, rhs=rhs)
        else:
            raise TypeError(f"not a rank expression: {expr!r}")

    def _relation(self, relation: Relation) -> None:
        self._message.relations.add(
            left=self._size(relation.left),
            sign=self._string(relation.sign),
            right=self._size(relation.right),
            loc=self._loc_number(relation.loc),
        )

    def _open_size(self, size: Size) -> None:
        note_open(size, self._open)
        self._message.exprs.add(
            kind=pb.Expr.SIZE,
            name=self._string(size.name),
            least=size.least,
            most=size.most,
            planned=size.planned,
            step=size.step if size.step > 1 else 0,
        )

    def _extent(self, expr: IntExpr) -> tuple[int, int]:
        return self._extents.get(expr, (1, 1))

    def _mesh(self, mesh: ProcessMesh) -> None:
        parent = self._meshes.number(mesh.parent)
        message = self._message.meshes.add(parent=parent)
        if mesh.fixed:
            axis, index = mesh.fixed[-1]
            message.slice.axis = self._string(axis)
            message.slice.index, *others = indices_of(index)
            if isinstance(index, range):
                message.slice.length = len(index)
            else:
                message.slice.others.extend(others)
            return
        message.array.shape.extend(mesh.shape)
        message.array.dim_names.extend(self._string(name) for name in mesh.dim_names)
        write_ints(mesh.ids, message.array.ids)

    def _dim(self, dim: DimLayout, message: pb.Dim) -> None:
        for sub in dim:
            axes = [self._string(axis) for axis in sub.axes]
            message.sub_dims.add(size=self._size(sub.size), axes=axes)

    def _layout(self, layout: Layout) -> None:
        mesh = self._meshes.number(layout.mesh)
        message = self._message.layouts.add(
            mesh=mesh,
            partial=self._strings.pairs(layout.partial),
            offload=self._string(layout.offload),
        )
        for dim in layout.dims:
            self._dim(dim, message.dims.add())
        if layout.mask is not None:
            message.mask.SetInParent()
            write_ints(layout.mask, message.mask)

    def _op_dist(self, dist: OpDist) -> None:
        mesh = self._meshes.number(dist.mesh)
        message = self._message.op_dists.add(mesh=mesh, body=self._string(dist.body))
        for name, dim in dist.factors:
            self._dim(dim, message.factors.add(name=self._string(name)).dim)
        for pending in dist.pending:
            axis, monoid = self._string(pending.axis), self._string(pending.monoid)
            message.pending.add(axis=axis, monoid=monoid, operands=pending.operands)

    def _function(self, function: Function) -> None:
        if wrong := [key for key, value in function.values.items() if key != value.name]:
            raise ValueError(f"function {function.name}: %{wrong[0]} is filed under a wrong name")
        message = self._message.functions.add(name=self._string(function.name))
        positions: dict[str, int] = {}
        for value in values_in_order(function):
            positions[value.name] = len(positions)
            self._value(value, message)
        try:
            message.inputs.extend(positions[name] for name in function.inputs)
            message.outputs.extend(positions[name] for name in function.outputs)
            message.aliases.extend(positions[name] for pair in function.aliases for name in pair)
            for op in function.ops:
                self._op(op, positions, message)
        except KeyError as error:
            raise ValueError(f"function {function.name}: no value %{error.args[0]}") from error

    def _value(self, value: Value, message: pb.Function) -> None:
        message.values.add(
            name=self._string(value.name),
            dtype=self._string(value.dtype),
            shape=[self._size(size) for size in value.shape],
            role=0 if value.role == "activation" else self._string(value.role),
            layout=self._layouts.number(value.dist),
            origin=self._origins.number(value.origin),
            loc=self._loc_number(value.loc),
        )

    def _op(self, op: Op, positions: Mapping[str, int], message: pb.Function) -> None:
        added = message.ops.add(
            kind=self._string(op.kind),
            results=[positions[name] for name in op.results],
            dist=self._op_dists.number(op.dist),
            origin=self._origins.number(op.origin),
            loc=self._loc_number(op.loc),
            stage=op.stage,
            microbatch=op.microbatch,
            times=op.times if only_microbatches(op.loops) else 0,
            loops=() if only_microbatches(op.loops) else self._loops(op.loops),
            phase=0 if op.phase == "forward" else self._string(op.phase),
            plan=self._strings.pairs(op.plan),
        )
        for name, arg in op.args:
            if _depth(arg) > MAX_ARG_DEPTH:
                raise ValueError(f"argument {name} of {op.kind} is too deep a list")
            self._arg(arg, added.args.add(name=self._string(name)), name, positions)

    def _loops(self, loops: Loops) -> Iterator[int]:
        for name, trip in loops:
            yield from (self._strings.number(name), trip)

    def _arg(self, arg: Arg, message: pb.Arg, name: str, positions: Mapping[str, int]) -> None:
        if isinstance(arg, Ref):
            message.ref = positions[arg.name]
        elif isinstance(arg, bool):
            message.boolean = arg
        elif isinstance(arg, int):
            _write_int(arg, message)
        elif isinstance(arg, tuple):
            self._tuple(arg, message, name, positions)
        elif isinstance(arg, float):
            message.number = math.nan if math.isnan(arg) else arg
        elif isinstance(arg, complex):
            message.complex.real, message.complex.imag = arg.real, arg.imag
        elif isinstance(arg, str):
            message.text = self._string(arg)
        elif isinstance(arg, DType):
            message.dtype = self._string(arg.name)
        elif isinstance(arg, Expr):
            message.expr = self._exprs.number(arg)
        elif arg is not None:
            kind = type(arg).__name__
            raise TypeError(f"argument {name} is a {kind}, which no op takes: {arg!r}")

    def _tuple(
        self, items: tuple[Arg, ...], message: pb.Arg, name: str, positions: Mapping[str, int]
    ) -> None:
        if items and all(type(item) is int and item in _INT64 for item in items):
            message.integers.items.extend(items)  # type: ignore[arg-type]
        elif items and all(isinstance(item, Ref) for item in items):
            message.refs.items.extend(positions[ref.name] for ref in refs(items))
        else:
            message.list.SetInParent()
            for item in items:
                self._arg(item, message.list.items.add(), name, positions)

    def _port(self, port: Port, message: pb.Signature.Port) -> None:
        message.name = self._string(port.name)
        message.label = self._string(port.label)
        message.dtype = self._string(port.dtype)
        message.role = self._string(port.role)
        message.shape.extend(map(self._size, port.shape))
        for dim in port.box:
            box = message.box.add()
            for sub in dim:
                size, start, length = map(self._size, (sub.size, sub.start, sub.length))
                box.sub_dims.add(size=size, start=start, length=length)
        if port.fill is not None:
            message.fill = math.nan if math.isnan(port.fill) else port.fill
        message.aliases.extend(map(self._string, port.aliases))
        if port.part is not None:
            message.part.of = self._string(port.part.of)
            message.part.shape.extend(port.part.shape)
            message.part.start.extend(port.part.start)
        self._named(port.options, message.options.add)

    def _example(self, example: Example, message: pb.Example) -> None:
        message.SetInParent()
        self._named(example.given, message.given.add)
        self._named(example.defaults, message.defaults.add)
        message.arguments.extend(map(self._string, example.arguments))

    def _named(self, args: Sequence[tuple[str, Arg]], add: Callable[..., pb.Arg]) -> None:
        for name, arg in args:
            self._arg(arg, add(name=self._string(name)), name, {})


def _depth(arg: Arg) -> int:
    """Returns the number of levels of lists, counted no further than needed."""
    depth, level = 0, [arg]
    while depth <= MAX_ARG_DEPTH and (lists := [item for item in level if type(item) is tuple]):
        depth += 1
        level = [item for each in lists for item in each]
    return depth


def _write_int(number: int, message: pb.Arg) -> None:
    if number in _INT64:
        message.integer = number
    else:
        message.big_integer = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def functions_in_order(program: Program) -> Iterator[Function]:
    """Yields `main`, then the functions in order of first use, then the unused ones by name."""
    queue = ["main"] if "main" in program.functions else []
    seen: dict[str, None] = {}
    while queue:
        name = queue.pop(0)
        if name in seen or name not in program.functions:
            continue
        seen[name] = None
        yield program.functions[name]
        queue.extend(_callees(program.functions[name]))
    for name in sorted(program.functions.keys() - seen.keys()):
        yield program.functions[name]


def _callees(function: Function) -> Iterator[str]:
    for op in function.ops:
        name = op.arg(CALLS.get(op.kind, ""))
        if isinstance(name, str) and op.kind in CALLS:
            yield name


def values_in_order(function: Function) -> Iterator[Value]:
    """Yields the inputs, then what the ops produce in order, then the rest by name."""
    produced = (name for op in function.ops for name in op.results)
    order = dict.fromkeys((*function.inputs, *produced))
    for name in order:
        if name in function.values:
            yield function.values[name]
    for name in sorted(function.values.keys() - order.keys()):
        yield function.values[name]
