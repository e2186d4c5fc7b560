"""Which sizes a program leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple

from autopar.ir.dims import DimLayout
from autopar.ir.expr.expression import Expr, IntExpr, Size, sizes_of
from autopar.ir.program import Arg, Function, Op, Port, Program


def used_sizes(program: Program) -> tuple[Size, ...]:
    """Returns the open sizes that a program uses anywhere, also inside ops, by name."""
    found = {size for expr in dict.fromkeys(_exprs(program)) for size in sizes_of(expr)}
    return tuple(sorted(found, key=lambda size: (size.name, astuple(size))))


def _exprs(program: Program) -> Iterator[Expr]:
    for function in program.functions.values():
        yield from _in_function(function)
    for port in (*program.signature.inputs, *program.signature.outputs):
        yield from _in_port(port)
    for each in program.relations:
        yield from _in_shape((each.left, each.right))
    if program.example is not None:
        for _, arg in (*program.example.given, *program.example.defaults):
            yield from exprs_in(arg)


def _in_function(function: Function) -> Iterator[Expr]:
    for value in function.values.values():
        yield from _in_shape(value.shape)
        if value.dist is not None:
            yield from _in_dims(value.dist.dims)
    for op in function.ops:
        yield from _in_op(op)


def _in_op(op: Op) -> Iterator[Expr]:
    for _, arg in op.args:
        yield from exprs_in(arg)
    if op.dist is not None:
        yield from _in_dims(dim for _, dim in op.dist.factors)


def _in_port(port: Port) -> Iterator[Expr]:
    yield from _in_shape(port.shape)
    for dim in port.box:
        for sub in dim:
            yield from _in_shape((sub.size, sub.start, sub.length))
    for _, option in port.options:
        yield from exprs_in(option)


def _in_dims(dims: Iterable[DimLayout]) -> Iterator[Expr]:
    return _in_shape(sub.size for dim in dims for sub in dim)


def _in_shape(shape: Iterable[IntExpr]) -> Iterator[Expr]:
    return (size for size in shape if isinstance(size, Expr))


def exprs_in(arg: Arg) -> Iterator[Expr]:
    """Yields the expressions within an argument."""
    if isinstance(arg, Expr):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from exprs_in(item)
