"""Unroll: the ops of a loop once for each iteration, one iteration after another.

Completion and partition see what is the same in all iterations once. What follows has to know them
apart: microbatches of a pipeline run in the order of a schedule, and each holds memory of its own.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.base.errors import VerificationError
from autopar.ir import emitted
from autopar.ir.emitted import Emitted
from autopar.ir.expr.expression import Expr, axes_of, substitute
from autopar.ir.memory.accumulating import ADDS
from autopar.ir.ops.loops import (
    CARRY,
    CAT,
    LAST,
    LEAVES,
    STACK,
    SUM,
    TAKE,
    behind,
    entered,
    is_inside,
)
from autopar.ir.program import MICROBATCH, Arg, Function, Op, OpDist, Program


def unrolled(program: Program) -> Program:
    """Returns a program, serial or partitioned, without loops."""
    main = program.main
    while has_loops(main):
        # Within one iteration of a loop those of the loops in it are one after another.
        innermost = max((op.loops for op in main.ops), key=len)
        main = _Unroller(main, *innermost[-1]).function()
    return program if main is program.main else program.with_main(main)


def has_loops(main: Function) -> bool:
    """Returns whether a function has loops."""
    return any(op.loops for op in main.ops)


class _Unroller:
    """Unrolls a loop of a function, in which there is no other one.

    What isn't in the loop stays where it stands: in the first iteration, or in the last one if it
    reads what the loop leaves.

    Args:
        main: The function.
        loop: The name of the loop.
        trip: How often it runs.
    """

    def __init__(self, main: Function, loop: str, trip: int) -> None:
        self._main, self._loop, self._trip = main, loop, trip
        inside = [op for op in main.ops if is_inside(behind(op), loop)]
        self._within = {name for op in inside for name in op.results}
        drawn = (op.arg("number") for op in main.ops)
        self._draws = 1 + max((each for each in drawn if isinstance(each, int)), default=0)
        self._values = dict(main.values)
        self._sums: dict[str, str] = {}
        self._first = {op.results[0]: op.operands[0] for op in inside if op.kind == CARRY}
        self._next = {
            op.operands[1]: op.operands[0]
            for op in main.ops
            if self._leaves(op) and op.kind == LAST
        }
        self._ops: list[Op] = []

    def function(self) -> Function:
        """Returns the function."""
        behind = self._behind()
        for iteration in range(self._trip):
            is_last = iteration == self._trip - 1
            for op in self._main.ops:
                if is_inside(op, self._loop):
                    self._iterate(op, iteration, is_last=is_last)
                elif is_last if op.results in behind else not iteration:
                    self._ops.append(op)
        values = {name: self._values[name] for name in self._used()}
        return replace(self._main, values=values, ops=tuple(self._ops))

    def _behind(self) -> set[tuple[str, ...]]:
        """Returns the results of ops that follow the loop, or read what it leaves."""
        ops = self._main.ops
        last = max(at for at, op in enumerate(ops) if is_inside(op, self._loop))
        left: set[str] = set()
        found: set[tuple[str, ...]] = set()
        for at, op in enumerate(ops):
            is_behind = at > last or not left.isdisjoint(op.operands)
            if is_behind and is_inside(op, self._loop):
                why = f"{op.kind} ({op.loc}) reads what is there behind the last iteration"
                raise VerificationError("a loop waits for itself", [why])
            if is_behind:
                found.add(op.results)
            if is_behind or self._leaves(op):
                left.update(op.results)
        return found

    def _iterate(self, op: Op, iteration: int, *, is_last: bool) -> None:
        """Adds an op of an iteration."""
        if entered(op) == self._loop:
            self._enter(op, iteration)
        elif not self._leaves(op):
            self._copy_op(op, iteration)
        elif op.kind == SUM:
            self._add(op, iteration, is_last=is_last)
        elif op.kind == LAST:
            if is_last:
                left = emitted.alias().with_operand(self._name(op.operands[0], iteration))
                self._write(left, op, op.results[0], iteration)
        elif op.kind in (CAT, STACK) and is_last:
            self._put_together(op)

    def _leaves(self, op: Op) -> bool:
        """Returns whether an op's result is there behind the loop alone."""
        return op.kind in LEAVES and op.loops[-1][0] == self._loop

    def _enter(self, op: Op, iteration: int) -> None:
        """Adds the part of an iteration; what is carried is there already."""
        if op.kind == TAKE:
            dim = op.arg("dim", 0)
            assert isinstance(dim, int)
            size = self._values[op.results[0]].shape[dim]
            part = emitted.slice_(iteration * size, (iteration + 1) * size, dim)
            result = self._name(op.results[0], iteration)
            self._write(part.with_operand(op.operands[0]), op, result, iteration)

    def _copy_op(self, op: Op, iteration: int) -> None:
        """Adds an op as it is in an iteration; each microbatch draws numbers of its own."""
        copy = op.with_operands([self._name(name, iteration) for name in op.operands])
        number = op.arg("number")
        if isinstance(number, int) and self._loop == MICROBATCH:
            copy = copy.with_args({"number": number + iteration * self._draws})
        copy = copy.with_args({name: self._at(arg, iteration) for name, arg in copy.args})
        results = tuple(self._name(name, iteration) for name in op.results)
        self._append(replace(copy, results=results), iteration)

    def _at(self, arg: Arg, iteration: int) -> Arg:
        """Returns an argument in an iteration, on which it may depend."""
        if isinstance(arg, tuple):
            return tuple(self._at(each, iteration) for each in arg)
        if isinstance(arg, Expr) and self._loop in axes_of(arg):
            return substitute(arg, {self._loop: iteration})
        return arg

    def _add(self, op: Op, iteration: int, *, is_last: bool) -> None:
        """Adds what an iteration has of a sum to that of those before."""
        (operand,), (result,) = op.operands, op.results
        part = self._name(operand, iteration)
        if not iteration:
            self._sums[result] = part
            return
        total = result if is_last else self._copy(result, f"{result}.s{iteration}")
        dtype = self._values[result].dtype
        added = emitted.combine("sum", part, dtype).with_operand(self._sums[result])
        self._write(added, replace(op, plan=(*op.plan, (ADDS, result))), total, iteration)
        self._sums[result] = total

    def _put_together(self, op: Op) -> None:
        """Adds what puts together what all iterations have of a value."""
        parts = [self._name(op.operands[0], each) for each in range(self._trip)]
        dim = op.arg("dim", 0)
        assert isinstance(dim, int)
        joined = emitted.cat(parts, dim) if op.kind == CAT else emitted.stack(parts)
        self._write(joined, op, op.results[0])

    def _write(self, new: Emitted, op: Op, result: str, iteration: int = 0) -> None:
        """Adds an op in the place of one at the border of a loop."""
        made = new.instead_of(op, result)
        dist = None if op.dist is None else OpDist(op.dist.mesh)
        self._append(replace(made, dist=dist), iteration)

    def _append(self, op: Op, iteration: int) -> None:
        microbatch = iteration if self._loop == MICROBATCH else op.microbatch
        loops = tuple(loop for loop in op.loops if loop[0] != self._loop)
        self._ops.append(replace(op, microbatch=microbatch, loops=loops))

    def _name(self, name: str, iteration: int) -> str:
        """Returns the name of what an iteration has of a value; the first one keeps it."""
        if name in self._first:
            if name not in self._next:
                why = f"%{name} was brought elsewhere, so no iteration says what it is in the next"
                raise VerificationError("a loop can't go on", [why])
            return self._name(self._next[name], iteration - 1) if iteration else self._first[name]
        if name not in self._within or not iteration:
            return name
        suffix = "m" if self._loop == MICROBATCH else f"{self._loop}."
        return self._copy(name, f"{name}.{suffix}{iteration}")

    def _copy(self, name: str, copy: str) -> str:
        """Returns the name of a value like another one."""
        while copy in self._main.values:
            copy += "_"
        if copy not in self._values:
            self._values[copy] = replace(self._values[name], name=copy)
        return copy

    def _used(self) -> list[str]:
        """Returns the names of the values that there are."""
        made = (name for op in self._ops for name in op.results)
        return list(dict.fromkeys((*self._main.inputs, *made)))
