"""From a shared program to what one rank runs: rank expressions become integers.

Ranks share a program; a rank's coordinates resolve its sizes, offsets and boxes. Only now is it
known where a rank holds nothing, so this is also where ops on empty tensors, on which kernels
crash, give way to constants.

Sizes that are open stay so. But the code is for those at which the rank holds nothing of the same
values: `Emptiness` says which these are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from autopar.base.errors import RuntimeFailure
from autopar.ir import emitted
from autopar.ir.collectives import is_collective
from autopar.ir.expr.at_rank import args_at, port_at, shape_at, size_at, value_at
from autopar.ir.expr.at_sizes import NO_SIZES, Sizes, as_coords
from autopar.ir.expr.expression import Expr, FromFirst, IntExpr, axes_of, evaluate
from autopar.ir.expr.facts import may_be
from autopar.ir.expr.formula import formula
from autopar.ir.nothing import IDENTITY, OF_NOTHING
from autopar.ir.program import (
    Arg,
    Function,
    Op,
    Port,
    Program,
    Signature,
    Value,
)
from autopar.runtime.collectives.monoids import identity
from autopar.runtime.kernels.table import TORCH_DTYPES

CONTROL = ("call", "repeat", "barrier")
"""Kinds that run functions or order values; they are never replaced by constants."""


def specialize(program: Program, coords: Mapping[str, int]) -> Program:
    """Returns the program of the rank with these coordinates, free of rank expressions.

    Args:
        program: A serial program, or an executable one; sizes that are open stay so.
        coords: The rank's coordinate per axis; empty for a serial program.

    Raises:
        RuntimeFailure: If an expression names an axis that `coords` lacks.
    """
    return replace(
        specialize_functions(program, coords), signature=specialize_signature(program, coords)
    )


def specialize_functions(
    program: Program, coords: Mapping[str, int], sizes: Sizes = NO_SIZES
) -> Program:
    """Returns the program with its code specialized, and the signature of all ranks.

    Args:
        program: A serial program, or an executable one.
        coords: The rank's coordinate per axis.
        sizes: Open sizes, by name: the code is for all at which `Emptiness` is the same. Without
            them nothing open is taken for empty.

    Raises:
        RuntimeFailure: If an expression names an axis that `coords` lacks.
    """
    known = as_coords(sizes)
    with _known_axes(program, coords):
        functions = {
            name: _function(function, coords, known) for name, function in program.functions.items()
        }
    return replace(program, functions=functions)


class Emptiness:
    """Which values of a rank have no elements, at sizes that are open.

    Args:
        program: A serial program, or an executable one.
        coords: The rank's coordinate per axis.
    """

    def __init__(self, program: Program, coords: Mapping[str, int]) -> None:
        with _known_axes(program, coords):
            sizes = {
                size
                for function in program.functions.values()
                for value in function.values.values()
                for size in shape_at(value.shape, coords)
            }
        self._sizes = formula(s for s in sizes if isinstance(s, Expr) and may_be(s, 0))

    def at(self, sizes: Sizes) -> tuple[bool, ...]:
        """Returns what is the same for sizes, by name, at which the same values are empty."""
        return tuple(size == 0 for size in self._sizes(as_coords(sizes)))


def specialize_signature(program: Program, coords: Mapping[str, int]) -> Signature:
    """Returns the inputs and outputs with the boxes of one rank.

    Raises:
        RuntimeFailure: If an expression names an axis that `coords` lacks, or a box isn't within
            its tensor.
    """
    with _known_axes(program, coords):
        return Signature(
            tuple(_port(port, coords) for port in program.signature.inputs),
            tuple(_port(port, coords) for port in program.signature.outputs),
        )


@contextmanager
def _known_axes(program: Program, coords: Mapping[str, int]) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise RuntimeFailure(
            f"program {program.name!r} depends on axis {error.args[0]!r}, but the rank has only"
            f" {sorted(coords)}; compile again"
        ) from error


def code_expressions(program: Program) -> tuple[Expr, ...]:
    """Returns the rank expressions of the code: ranks where all are equal run equal code."""
    found: dict[Expr, None] = {}
    for function in program.functions.values():
        for value in function.values.values():
            found.update((size, None) for size in value.shape if isinstance(size, Expr))
        for op in function.ops:
            for _, arg in op.args:
                found.update((expr, None) for expr in _arg_expressions(arg))
    return tuple(found)


def code_key(expressions: Iterable[Expr], coords: Mapping[str, int]) -> tuple[IntExpr | None, ...]:
    """Returns what the expressions are worth on a rank; None where it lacks an axis."""
    return tuple(
        size_at(expr, coords) if axes_of(expr) <= coords.keys() else None for expr in expressions
    )


def _arg_expressions(arg: Arg) -> Iterable[Expr]:
    if isinstance(arg, Expr):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _arg_expressions(item)


def _function(function: Function, coords: Mapping[str, int], known: Mapping[str, int]) -> Function:
    values = {
        name: _without_nothing(value_at(value, coords), known)
        for name, value in function.values.items()
    }
    missing = frozenset(
        name
        for name, value in function.values.items()
        if _is_empty(values[name]) and not _is_empty_everywhere(value, known)
    )
    ops = tuple(
        concrete
        for at_rank in (replace(op, args=args_at(op.args, coords)) for op in function.ops)
        for concrete in _without_empties(at_rank, values, missing)
    )
    return replace(function, values=values, ops=ops)


def _without_nothing(value: Value, known: Mapping[str, int]) -> Value:
    """Returns a value with 0 for open sizes that are, at sizes that are known, if any is."""
    if not known or all(isinstance(size, int) for size in value.shape):
        return value
    return replace(value, shape=tuple(size if evaluate(size, known) else 0 for size in value.shape))


def _is_empty_everywhere(value: Value, known: Mapping[str, int]) -> bool:
    """Returns whether no rank has an element: then the first one of each axis has none."""
    first = FromFirst(known)
    return any(evaluate(size, first) == 0 for size in value.shape)


def _port(port: Port, coords: Mapping[str, int]) -> Port:
    found = port_at(port, coords)
    for sub in (sub for dim in found.box for sub in dim):
        size, start, length = sub.size, sub.start, sub.length
        if not isinstance(size, int) or not isinstance(start, int) or not isinstance(length, int):
            continue
        if not 0 <= start <= start + length <= size:
            raise RuntimeFailure(
                f"port {port.name!r}: at {dict(coords)}, a rank's part of {size} elements is"
                f" {length} from {start} on, which is outside; compile again"
            )
    return found


def _without_empties(op: Op, values: Mapping[str, Value], missing: Collection[str]) -> Iterable[Op]:
    """Yields the op, or constants in its place where it has nothing to compute.

    Args:
        op: The op.
        values: What the rank has.
        missing: The values of which others have a part and the rank has none.
    """
    if op.kind in CONTROL or is_collective(op.kind):
        return (op,)
    if op.kind == emitted.TO_PARTIAL:
        return (_to_partial(op, values),)
    if all(_is_empty(values[name]) for name in op.results):
        return tuple(_constant(op, values[name], 0) for name in op.results)
    monoids = _monoids_of_nothing(op, values, missing)
    if monoids:
        results = zip(op.results, monoids.split(","), strict=True)
        return tuple(_nothing(op, values[name], monoid) for name, monoid in results)
    return (op,)


def _monoids_of_nothing(op: Op, values: Mapping[str, Value], missing: Collection[str]) -> str:
    """Returns whose identities an op's results are; "" if it must run."""
    plan = dict(op.plan)
    if IDENTITY in plan and any(name in missing for name in op.operands):
        return plan[IDENTITY]
    if OF_NOTHING in plan and any(_is_empty(values[name]) for name in op.operands):
        return plan[OF_NOTHING]
    return ""


def _nothing(op: Op, value: Value, monoid: str) -> Op:
    """Returns the op that contributes nothing to a reduction, or makes a result without elements.

    The latter has no reduction, which is written `-`.
    """
    return _constant(op, value, 0) if monoid == "-" else _identity(op, value, monoid)


def _to_partial(op: Op, values: Mapping[str, Value]) -> Op:
    if op.arg("index") == 0:
        return emitted.alias().with_operand(op.operands[0]).instead_of(op, op.results[0])
    return _identity(op, values[op.results[0]], str(op.arg("monoid")))


def _identity(op: Op, value: Value, monoid: str) -> Op:
    return _constant(op, value, identity(monoid, TORCH_DTYPES[value.dtype]))


def _constant(op: Op, value: Value, element: bool | int | float) -> Op:
    constant = emitted.full(value.shape, element, value.dtype).instead_of(op, value.name)
    return replace(constant, plan=())


def _is_empty(value: Value) -> bool:
    return 0 in value.shape
