"""Programs at one rank: rank expressions become integers, but for sizes that are open.

What a rank lacks, or holds nothing of, is the runtime's to say; here only numbers change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from autopar.ir.expr.expression import (
    AsPlanned,
    Expr,
    IntExpr,
    axes_of,
    evaluate,
    sizes_of,
    substitute,
)
from autopar.ir.program import Arg, BoxDim, Function, Op, Port, Program, Signature, Value


def size_at(size: IntExpr, coords: Mapping[str, int]) -> IntExpr:
    """Returns a size on the rank with these coordinates: a number, unless it is open.

    Raises:
        KeyError: If an expression names an axis that `coords` lacks, as all functions here.
    """
    if isinstance(size, int):
        return size
    unnamed = {} if isinstance(coords, AsPlanned) else sizes_of(size)
    if not all(str(each) in coords for each in unnamed):
        known = {axis: coords[axis] for axis in axes_of(size)}
        return substitute(size, {**coords, **known})
    return evaluate(size, coords)


def shape_at(shape: Iterable[IntExpr], coords: Mapping[str, int]) -> tuple[IntExpr, ...]:
    """Returns a shape on the rank with these coordinates.

    Raises:
        KeyError: If an expression names an axis that `coords` lacks, as all functions here.
    """
    return tuple(size_at(size, coords) for size in shape)


def value_at(value: Value, coords: Mapping[str, int]) -> Value:
    """Returns a value with its shape on the rank."""
    if all(isinstance(size, int) for size in value.shape):
        return value
    return replace(value, shape=shape_at(value.shape, coords))


def arg_at(arg: Arg, coords: Mapping[str, int]) -> Arg:
    """Returns an argument of an op on the rank, the items of lists too."""
    if isinstance(arg, tuple):
        return tuple(arg_at(item, coords) for item in arg)
    return size_at(arg, coords) if isinstance(arg, Expr) else arg


def args_at(
    args: Iterable[tuple[str, Arg]], coords: Mapping[str, int]
) -> tuple[tuple[str, Arg], ...]:
    """Returns the arguments of an op on the rank."""
    return tuple((name, arg_at(arg, coords)) for name, arg in args)


def op_args_at(op: Op, coords: Mapping[str, int]) -> tuple[tuple[str, Arg], ...]:
    """Returns the arguments of an op on the rank; in a loop, those of the first iteration."""
    return args_at(op.args, {**dict.fromkeys(dict(op.loops), 0), **coords} if op.loops else coords)


def port_at(port: Port, coords: Mapping[str, int]) -> Port:
    """Returns an input or output with the rank's box."""
    return replace(port, box=tuple(tuple(_at(sub, coords) for sub in dim) for dim in port.box))


def _at(sub: BoxDim, coords: Mapping[str, int]) -> BoxDim:
    return BoxDim(*(size_at(each, coords) for each in (sub.size, sub.start, sub.length)))


def program_at(program: Program, coords: Mapping[str, int]) -> Program:
    """Returns a program with the shapes, arguments and boxes of the rank."""
    functions = {name: _function(each, coords) for name, each in program.functions.items()}
    ports = program.signature
    signature = Signature(
        tuple(port_at(port, coords) for port in ports.inputs),
        tuple(port_at(port, coords) for port in ports.outputs),
    )
    return replace(program, functions=functions, signature=signature)


def _function(function: Function, coords: Mapping[str, int]) -> Function:
    values = {name: value_at(value, coords) for name, value in function.values.items()}
    ops = tuple(replace(op, args=args_at(op.args, coords)) for op in function.ops)
    return replace(function, values=values, ops=ops)
