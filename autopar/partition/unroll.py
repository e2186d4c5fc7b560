"""Unroll: what the ranks along a mesh axis do beside one another, done one after another.

An axis of the mesh may stand for time. Then a coordinate is an iteration, and what partition has
decided holds as it is: which part of a value an iteration has, what must be the sum of all parts,
how blocks are cut that aren't equally large. Only there is no communication, since one device has
all parts: what is gathered is put together, what is reduced is added up, and a piece is a slice.

The result is a serial program again. Ops of an iteration have its number as their microbatch; what
is the same in all iterations is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.base.errors import VerificationError
from autopar.ir import emitted
from autopar.ir.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    DECLARED,
    REDISTRIBUTE,
    REDUCE_SCATTER,
    is_collective,
)
from autopar.ir.dims import SubDim, local_extent
from autopar.ir.dtypes import HALVES
from autopar.ir.emitted import Emitted
from autopar.ir.expr.at_rank import args_at, size_at, value_at
from autopar.ir.expr.expression import Expr, IntExpr
from autopar.ir.mesh import ProcessMesh
from autopar.ir.nothing import IDENTITY, OF_NOTHING
from autopar.ir.program import Function, Op, Value
from autopar.ir.rules.redistribution import Exchange
from autopar.partition.pipeline.order import in_order

HOISTED = -1
"""In the place of an iteration: of what is computed once, as soon as what it reads is there."""

Parts = Sequence[str]
"""The names of what the iterations have of a value."""


@dataclass(frozen=True)
class Unrolled:
    """A function that does the work of all ranks of a mesh, one after another.

    Attributes:
        function: The function.
        parts: The names of what iterations have of a value, of those where that differs.
    """

    function: Function
    parts: Mapping[str, Parts]


def unroll(main: Function, mesh: ProcessMesh) -> Unrolled:
    """Returns the function that does the work of all ranks of a mesh, one after another.

    Args:
        main: A partitioned function, whose inputs and outputs every rank has whole.
        mesh: The mesh, of one axis.

    Raises:
        VerificationError: If ranks communicate in a way for which there is nothing on one device.
    """
    unrolling = _Unrolling(main, mesh)
    return Unrolled(unrolling.function(), unrolling.parts)


class _Unrolling:
    """A function as it is unrolled.

    Args:
        main: The partitioned function.
        mesh: The mesh.

    Attributes:
        parts: See `Unrolled`.
    """

    def __init__(self, main: Function, mesh: ProcessMesh) -> None:
        self._main, self._mesh = main, mesh
        (self._axis,) = mesh.dim_names
        self._iterations = range(mesh.size)
        self._values = {name: _bare(main.values[name]) for name in main.inputs}
        self.parts: dict[str, Parts] = {}
        self._ops: list[Op] = []
        self._when: list[int] = []

    def function(self) -> Function:
        """Returns the function."""
        for op in self._main.ops:
            if is_collective(op.kind):
                self._put_together(op)
            elif self._differs(op):
                self._repeat(op)
            else:
                self._add(op, op.results, HOISTED)
        order = in_order(self._ops, [(float(iteration), False) for iteration in self._when])
        ops = tuple(self._ops[at] for at in order)
        return replace(self._main, values=self._values, ops=ops)

    def _differs(self, op: Op) -> bool:
        """Returns whether an op computes something else in each iteration."""
        if any(name in self.parts for name in op.operands):
            return True
        return args_at(op.args, self._at(0)) != op.args

    def _at(self, iteration: int) -> Mapping[str, int]:
        return {self._axis: max(iteration, 0)}

    def _repeat(self, op: Op) -> None:
        """Adds an op for each iteration."""
        # What one rank lacks others have; an iteration that has nothing of a value is alone.
        plan = tuple((OF_NOTHING if key == IDENTITY else key, word) for key, word in op.plan)
        results = [self._divide(name) for name in op.results]
        for iteration in self._iterations:
            args = args_at(op.args, self._at(iteration))
            operands = [self._part(name, iteration) for name in op.operands]
            copy = replace(op, args=args, plan=plan).with_operands(operands)
            self._add(copy, [parts[iteration] for parts in results], iteration)

    def _add(self, op: Op, names: Sequence[str], iteration: int) -> None:
        """Adds an op, as one of an iteration, under other names of its results."""
        for name, new in zip(op.results, names, strict=True):
            self._name(new, value_at(self._main.values[name], self._at(iteration)))
        self._append(replace(op, results=tuple(names)), iteration)

    def _name(self, name: str, value: Value) -> None:
        self._values[name] = replace(_bare(value), name=name)

    def _append(self, op: Op, iteration: int) -> None:
        self._ops.append(replace(op, dist=None, origin=None, microbatch=max(iteration, 0)))
        self._when.append(iteration)

    def _part(self, name: str, iteration: int) -> str:
        """Returns the name of what an iteration has of a value."""
        return self.parts[name][iteration] if name in self.parts else name

    def _divide(self, name: str) -> Parts:
        """Returns names for what the iterations have of a value."""
        self.parts[name] = [self._fresh(f"{name}.{each}") for each in self._iterations]
        return self.parts[name]

    def _fresh(self, name: str) -> str:
        while name in self._values or name in self._main.values:
            name += "_"
        return name

    def _put_together(self, op: Op) -> None:
        """Adds what stands in the place of communication."""
        if op.kind not in _TOGETHER:
            why = f"{op.kind} ({op.loc}) has no counterpart on one device"
            raise VerificationError("ranks can't work one after another", [why])
        (operand,) = op.operands
        _TOGETHER[op.kind](self, op, [self._part(operand, each) for each in self._iterations])

    def _all_gather(self, op: Op, parts: Parts) -> None:
        self._cat(op, parts, "dim", op.results[0])

    def _all_reduce(self, op: Op, parts: Parts) -> None:
        self._reduce(op, parts, op.results[0])

    def _reduce_scatter(self, op: Op, parts: Parts) -> None:
        whole = self._fresh(f"{op.results[0]}.whole")
        self._reduce(op, parts, whole)
        self._cut(op, whole, "dim")

    def _all_to_all(self, op: Op, parts: Parts) -> None:
        whole = self._fresh(f"{op.results[0]}.whole")
        self._cat(op, parts, "concat_dim", whole)
        self._cut(op, whole, "split_dim")

    def _redistribute(self, op: Op, parts: Parts) -> None:
        exchange = Exchange.of_args(dict(op.args))
        whole = self._fresh(f"{op.results[0]}.whole")
        held = {exchange.numbering.held_by(each): parts[each] for each in self._iterations}
        self._cat(op, [held[each] for each in sorted(held)], "dim", whole)
        fill, dim = exchange.window.fill, _integer(op, "dim")
        for iteration, name in enumerate(self._divide(op.results[0])):
            low, length = exchange.extent(iteration, len(parts))
            window = emitted.window(dim, low, low + length, fill)
            self._emit(op, window.with_operand(whole), name, iteration)
            self._name(name, value_at(self._main.values[op.results[0]], self._at(iteration)))

    def _cat(self, op: Op, parts: Parts, argument: str, name: str) -> None:
        """Adds the whole of which iterations have parts along a dimension."""
        dim, first = _integer(op, argument), self._values[parts[0]]
        size = dict(op.args)[_SIZES[op.kind]]
        assert isinstance(size, (int, Expr))
        self._emit(op, emitted.cat(parts, dim), name, self._iterations[-1])
        self._name(name, replace(first, shape=_with_size(first, dim, size)))

    def _cut(self, op: Op, whole: str, argument: str) -> None:
        """Adds the blocks of a whole along a dimension, one for each iteration."""
        dim, value = _integer(op, argument), self._values[whole]
        start, length = local_extent(SubDim(value.shape[dim], (self._axis,)), self._mesh)
        for iteration, name in enumerate(self._divide(op.results[0])):
            low, size = (size_at(each, self._at(iteration)) for each in (start, length))
            piece = emitted.slice_(low, low + size, dim or None).with_operand(whole)
            self._emit(op, piece, name, iteration)
            self._name(name, replace(value, shape=_with_size(value, dim, size)))

    def _reduce(self, op: Op, parts: Parts, name: str) -> None:
        """Adds the reduction of what iterations have, as they have it."""
        value, monoid = self._values[parts[0]], str(op.arg("monoid"))
        # Sums of halves are rounded once.
        wide = replace(value, dtype="f32" if value.dtype in HALVES else value.dtype)
        total = self._cast(op, parts[0], wide, 0)
        for iteration in self._iterations[1:]:
            part = self._cast(op, parts[iteration], wide, iteration)
            last = iteration == self._iterations[-1] and wide.dtype == value.dtype
            sum_ = name if last else self._fresh(f"{name}.to{iteration}")
            made = emitted.combine(monoid, part, wide.dtype).with_operand(total)
            self._emit(op, made, sum_, iteration)
            self._name(sum_, wide)
            total = sum_
        if total != name:
            self._emit(op, emitted.to_dtype(value.dtype).with_operand(total), name, iteration)
            self._name(name, value)

    def _cast(self, op: Op, part: str, wide: Value, iteration: int) -> str:
        """Returns the name of a part in the dtype in which it is added up."""
        if self._values[part].dtype == wide.dtype:
            return part
        name = self._fresh(f"{part}.{wide.dtype}")
        self._emit(op, emitted.to_dtype(wide.dtype).with_operand(part), name, iteration)
        self._name(name, wide)
        return name

    def _emit(self, op: Op, made: Emitted, name: str, iteration: int) -> None:
        """Adds an op that stands in the place of another."""
        self._append(replace(made.instead_of(op, name), plan=()), iteration)


def _bare(value: Value) -> Value:
    return replace(value, dist=None, origin=None)


def _integer(op: Op, name: str) -> int:
    number = op.arg(name)
    assert isinstance(number, int)
    return number


def _with_size(value: Value, dim: int, size: IntExpr) -> tuple[IntExpr, ...]:
    return (*value.shape[:dim], size, *value.shape[dim + 1 :])


_SIZES = {each.kind: dim.size for each in DECLARED.values() for dim in each.dims if dim.size}
"""The argument that is the size of what is put together."""

_TOGETHER: Mapping[str, Callable[[_Unrolling, Op, Parts], None]] = {
    ALL_GATHER: _Unrolling._all_gather,
    ALL_REDUCE: _Unrolling._all_reduce,
    REDUCE_SCATTER: _Unrolling._reduce_scatter,
    ALL_TO_ALL: _Unrolling._all_to_all,
    REDISTRIBUTE: _Unrolling._redistribute,
}
