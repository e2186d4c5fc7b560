"""Program -> protobuf message. `ProgramWriter` has a method per class of the IR."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from autopar.ir import program_pb2 as pb
from autopar.ir.errors import UNKNOWN, Loc
from autopar.ir.expr import Binary, Coord, Expr, IntExpr
from autopar.ir.layout import DimLayout, Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import (
    Arg,
    DType,
    Function,
    Op,
    OpDist,
    Port,
    Program,
    Ref,
    Signature,
    Value,
    refs,
)
from autopar.ir.serde_tables import StringWriter, extent_of_binary, ints_to_proto

Item = TypeVar("Item")
Message = TypeVar("Message")

EXPR_KINDS: Mapping[str, pb.Expr.Kind] = {
    "+": pb.Expr.ADD,
    "*": pb.Expr.MULTIPLY,
    "//": pb.Expr.FLOORDIV,
    "min": pb.Expr.MIN,
    "max": pb.Expr.MAX,
}

_INT64 = range(-(1 << 63), 1 << 63)


def program_to_proto(program: Program) -> pb.Program:
    """Returns the message of a program.

    Equal programs give equal messages: the order of the functions and values in their mappings,
    which equality ignores, has no influence.

    Raises:
        ValueError: If an op or output names a value that the function lacks, or a number is
            outside the format's range.
    """
    return _ProgramWriter().program(program)


class _Table(Generic[Item, Message]):
    """Numbers distinct items from 1 in order of first use; 0 is None."""

    def __init__(self, encode: Callable[[Item], Message]) -> None:
        self.messages: list[Message] = []
        self._encode = encode
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
            # What the item refers to is numbered first, so tables refer backwards only.
            message = self._encode(item)
            self.messages.append(message)
            number = self._numbers[item] = len(self.messages)
        self._by_identity[id(item)] = (item, number)
        return number


class _ProgramWriter:
    def __init__(self) -> None:
        self._strings = StringWriter()
        self._string = self._strings.number
        self._locs = _Table(self._loc)
        self._exprs = _Table(self._expr)
        self._extents: dict[IntExpr, tuple[int, int]] = {}
        self._meshes = _Table(self._mesh)
        self._layouts = _Table(self._layout)
        self._op_dists = _Table(self._op_dist)
        self._origins = _Table(self._origin)

    def program(self, program: Program) -> pb.Program:
        if wrong := [key for key, function in program.functions.items() if key != function.name]:
            raise ValueError(f"function {wrong[0]} is filed under a wrong name")
        return pb.Program(
            name=self._string(program.name),
            level=self._string(program.level),
            mesh=self._meshes.number(program.mesh),
            functions=[self._function(function) for function in functions_in_order(program)],
            signature=self._signature(program.signature),
            strings=self._strings.table(),
            locs=self._locs.messages,
            exprs=self._exprs.messages,
            meshes=self._meshes.messages,
            layouts=self._layouts.messages,
            op_dists=self._op_dists.messages,
            origins=self._origins.messages,
        )

    def _loc(self, loc: Loc) -> pb.Loc:
        return pb.Loc(file=self._string(loc.file), line=loc.line, name=self._string(loc.name))

    def _loc_number(self, loc: Loc) -> int:
        return self._locs.number(None if loc == UNKNOWN else loc)

    def _origin(self, origin: Origin) -> pb.Origin:
        return pb.Origin(kind=self._string(origin.kind), detail=self._string(origin.detail))

    def _size(self, size: IntExpr) -> int:
        return size if isinstance(size, int) and size >= 0 else -self._exprs.number(size)

    def _expr(self, expr: IntExpr) -> pb.Expr:
        if isinstance(expr, int):
            return pb.Expr(constant=expr)
        if isinstance(expr, Coord):
            return pb.Expr(kind=pb.Expr.COORD, axis=self._string(expr.axis))
        if isinstance(expr, Binary):
            lhs, rhs = self._size(expr.lhs), self._size(expr.rhs)
            self._extents[expr] = extent_of_binary(self._extent(expr.lhs), self._extent(expr.rhs))
            return pb.Expr(kind=EXPR_KINDS[expr.op], lhs=lhs, rhs=rhs)
        raise TypeError(f"not a rank expression: {expr!r}")

    def _extent(self, expr: IntExpr) -> tuple[int, int]:
        return self._extents.get(expr, (1, 1))

    def _mesh(self, mesh: ProcessMesh) -> pb.Mesh:
        parent = self._meshes.number(mesh.parent)
        if mesh.fixed:
            axis, index = mesh.fixed[-1]
            piece = pb.Mesh.Slice(axis=self._string(axis), index=index)
            return pb.Mesh(parent=parent, slice=piece)
        names = [self._string(name) for name in mesh.dim_names]
        ids = ints_to_proto(mesh.ids)
        return pb.Mesh(
            parent=parent, array=pb.Mesh.Array(shape=mesh.shape, dim_names=names, ids=ids)
        )

    def _dim(self, dim: DimLayout) -> pb.Dim:
        subs = [
            pb.Dim.SubDim(size=sub.size, axes=[self._string(axis) for axis in sub.axes])
            for sub in dim
        ]
        return pb.Dim(sub_dims=subs)

    def _layout(self, layout: Layout) -> pb.Layout:
        return pb.Layout(
            mesh=self._meshes.number(layout.mesh),
            dims=[self._dim(dim) for dim in layout.dims],
            partial=self._strings.pairs(layout.partial),
            mask=None if layout.mask is None else ints_to_proto(layout.mask),
            offload=self._string(layout.offload),
        )

    def _op_dist(self, dist: OpDist) -> pb.OpDist:
        factors = [
            pb.OpDist.Factor(name=self._string(name), dim=self._dim(dim))
            for name, dim in dist.factors
        ]
        pending = [
            pb.OpDist.Pending(
                axis=self._string(p.axis), monoid=self._string(p.monoid), operands=p.operands
            )
            for p in dist.pending
        ]
        return pb.OpDist(
            mesh=self._meshes.number(dist.mesh),
            factors=factors,
            body=self._string(dist.body),
            pending=pending,
        )

    def _function(self, function: Function) -> pb.Function:
        if wrong := [key for key, value in function.values.items() if key != value.name]:
            raise ValueError(f"function {function.name}: %{wrong[0]} is filed under a wrong name")
        values = list(values_in_order(function))
        positions = {value.name: at for at, value in enumerate(values)}
        try:
            return pb.Function(
                name=self._string(function.name),
                values=[self._value(value) for value in values],
                inputs=[positions[name] for name in function.inputs],
                outputs=[positions[name] for name in function.outputs],
                ops=[self._op(op, positions) for op in function.ops],
                aliases=[positions[name] for pair in function.aliases for name in pair],
            )
        except KeyError as error:
            raise ValueError(f"function {function.name}: no value %{error.args[0]}") from error

    def _value(self, value: Value) -> pb.Value:
        return pb.Value(
            name=self._string(value.name),
            dtype=self._string(value.dtype),
            shape=[self._size(size) for size in value.shape],
            role=0 if value.role == "activation" else self._string(value.role),
            layout=self._layouts.number(value.dist),
            origin=self._origins.number(value.origin),
            loc=self._loc_number(value.loc),
        )

    def _op(self, op: Op, positions: Mapping[str, int]) -> pb.Op:
        return pb.Op(
            kind=self._string(op.kind),
            args=[self._arg(name, arg, positions) for name, arg in op.args],
            results=[positions[name] for name in op.results],
            dist=self._op_dists.number(op.dist),
            origin=self._origins.number(op.origin),
            loc=self._loc_number(op.loc),
            stage=op.stage,
            microbatch=op.microbatch,
            phase=0 if op.phase == "forward" else self._string(op.phase),
            plan=self._strings.pairs(op.plan),
        )

    def _arg(self, name: str, arg: Arg, positions: Mapping[str, int]) -> pb.Arg:
        number = self._string(name)
        if isinstance(arg, Ref):
            return pb.Arg(name=number, ref=positions[arg.name])
        if isinstance(arg, bool):
            return pb.Arg(name=number, boolean=arg)
        if isinstance(arg, int):
            return _int_arg(number, arg)
        if isinstance(arg, tuple):
            return self._tuple_arg(number, arg, positions)
        if isinstance(arg, float):
            return pb.Arg(name=number, number=math.nan if math.isnan(arg) else arg)
        if isinstance(arg, str):
            return pb.Arg(name=number, text=self._string(arg))
        if isinstance(arg, DType):
            return pb.Arg(name=number, dtype=self._string(arg.name))
        if isinstance(arg, Expr):
            return pb.Arg(name=number, expr=self._exprs.number(arg))
        if arg is None:
            return pb.Arg(name=number)
        raise TypeError(f"argument {name} is a {type(arg).__name__}, which no op takes: {arg!r}")

    def _tuple_arg(
        self, number: int, items: tuple[Arg, ...], positions: Mapping[str, int]
    ) -> pb.Arg:
        if items and all(type(item) is int and item in _INT64 for item in items):
            return pb.Arg(name=number, integers=pb.Arg.IntList(items=items))  # type: ignore[arg-type]
        if items and all(isinstance(item, Ref) for item in items):
            places = [positions[ref.name] for ref in refs(items)]
            return pb.Arg(name=number, refs=pb.Arg.RefList(items=places))
        listed = [self._arg("", item, positions) for item in items]
        return pb.Arg(name=number, list=pb.Arg.List(items=listed))

    def _signature(self, signature: Signature) -> pb.Signature:
        return pb.Signature(
            inputs=[self._port(port) for port in signature.inputs],
            outputs=[self._port(port) for port in signature.outputs],
        )

    def _port(self, port: Port) -> pb.Signature.Port:
        boxes = [
            pb.Signature.Box(
                sub_dims=[
                    pb.Signature.BoxDim(
                        size=sub.size, start=self._size(sub.start), length=self._size(sub.length)
                    )
                    for sub in dim
                ]
            )
            for dim in port.box
        ]
        return pb.Signature.Port(
            name=self._string(port.name),
            label=self._string(port.label),
            dtype=self._string(port.dtype),
            shape=port.shape,
            role=self._string(port.role),
            box=boxes,
        )


def _int_arg(name: int, number: int) -> pb.Arg:
    if number in _INT64:
        return pb.Arg(name=name, integer=number)
    data = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    return pb.Arg(name=name, big_integer=data)


def functions_in_order(program: Program) -> Iterator[Function]:
    """Yields `main`, then the functions in order of first use, then the unused ones by name."""
    waiting = ["main"] if "main" in program.functions else []
    seen: dict[str, None] = {}
    while waiting:
        name = waiting.pop(0)
        if name in seen or name not in program.functions:
            continue
        seen[name] = None
        yield program.functions[name]
        waiting.extend(_callees(program.functions[name]))
    for name in sorted(program.functions.keys() - seen.keys()):
        yield program.functions[name]


def _callees(function: Function) -> Iterator[str]:
    for op in function.ops:
        name = op.arg("callee" if op.kind == "call" else "body")
        if op.kind in ("call", "repeat") and isinstance(name, str):
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
