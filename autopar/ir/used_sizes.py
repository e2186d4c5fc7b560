"""Which sizes a program leaves open, and which numbers its loops count by.

The number of an iteration is a size to the ops in it: one that the loop knows, and no caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple

from autopar.ir.dims import DimLayout
from autopar.ir.expr.expression import Expr, IntExpr, Size, sizes_of
from autopar.ir.program import (
    CALLS,
    REPEAT,
    Arg,
    Function,
    Op,
    Port,
    Program,
    called,
    callee_of,
    index_of,
)


def used_sizes(program: Program) -> tuple[Size, ...]:
    """Returns the open sizes that a program uses anywhere, also inside ops, by name."""
    counted = counted_sizes(program)
    return tuple(size for size in declared_sizes(program) if size not in counted)


def counted_sizes(program: Program) -> frozenset[Size]:
    """Returns the numbers of iterations."""
    return frozenset(index for index in _counted_by(program).values() if index is not None)


def declared_sizes(program: Program) -> tuple[Size, ...]:
    """Returns the same, and the numbers of iterations."""
    return _in_order(size for expr in dict.fromkeys(_exprs(program)) for size in sizes_of(expr))


def counted_in(program: Program) -> Mapping[str, tuple[Size, ...]]:
    """Returns which numbers of iterations each function is given, by its name.

    Those of loops around come first, and that of the loop whose body it is last.
    """
    counted, numbers = _counted_by(program), counted_sizes(program)
    found: dict[str, tuple[Size, ...]] = {}

    def visit(name: str) -> tuple[Size, ...]:
        if name not in found and name in program.functions:
            function = program.functions[name]
            inner = {size for each in called(function) for size in visit(each)}
            bound = {counted.get(callee_of(op)) for op in function.ops if op.kind in CALLS}
            used = {size for expr in _in_function(function) for size in sizes_of(expr)}
            own = counted.get(name)
            outer = ((inner | used) & numbers) - bound - {own}
            found[name] = (*_in_order(outer), *(() if own is None else (own,)))
        return found.get(name, ())

    for name in program.functions:
        visit(name)
    return found


def _counted_by(program: Program) -> dict[str, Size | None]:
    """Returns the numbers of iterations of the loops, by the names of their bodies."""
    ops = (op for function in program.functions.values() for op in function.ops)
    return {callee_of(op): index_of(op) for op in ops if op.kind == REPEAT}


def _in_order(sizes: Iterable[Size]) -> tuple[Size, ...]:
    return tuple(sorted(set(sizes), key=lambda size: (size.name, astuple(size))))


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
