"""Unroll: the ops of a loop once for each iteration, one iteration after another.

Completion and partition see what is the same in all iterations once. What follows has to know them
apart: microbatches of a pipeline run in the order of a schedule, and each holds memory of its own.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from autopar.base.errors import VerificationError
from autopar.ir import emitted
from autopar.ir.emitted import Emitted
from autopar.ir.ops.loops import (
    CARRY,
    CAT,
    LAST,
    LEAVES,
    SEED,
    STACK,
    SUM,
    TAKE,
    is_inside,
    lasts,
)
from autopar.ir.program import Function, Op, OpDist, Program, Ref


def unrolled(program: Program) -> Program:
    """Returns a program, serial or partitioned, without loops."""
    if not has_loops(program.main):
        return program
    return program.with_main(_Unroller(with_seeds(program.main)).function())


def has_loops(main: Function) -> bool:
    """Returns whether a function has loops."""
    return any(op.times > 1 for op in main.ops)


def with_seeds(main: Function) -> Function:
    """Returns a function whose random ops in a loop are given a seed that tells iterations apart.

    Each process makes it of the seed that it has.
    """
    values, ops, known = dict(main.values), list[Op](), dict[tuple[object, ...], str]()
    for op in main.ops:
        seed = op.arg("seed")
        if is_inside(op) and op.arg("number") is not None and isinstance(seed, Ref):
            key = seed.name, op.stage, None if op.dist is None else op.dist.mesh
            if key not in known:
                name = known[key] = _fresh(f"{seed.name}.{op.results[0]}", values)
                values[name] = replace(values[seed.name], name=name, role="activation")
                made = replace(op, kind=SEED, args=(("self", seed),), results=(name,), plan=())
                ops.append(_on_mesh(made))
            op = op.with_args({"seed": Ref(known[key])})
        ops.append(op)
    return replace(main, values=values, ops=tuple(ops))


_SEED_STEP = 0x9E3779B97F4A7C15
"""Between the seeds of iterations: odd, and far from what users give, or count steps by."""


class _Unroller:
    """Unrolls the loop of a function.

    What isn't in the loop stays where it stands: in the first iteration, or in the last one if it
    reads what the loop leaves.
    """

    def __init__(self, main: Function) -> None:
        self._main = main
        self._trip = max(op.times for op in main.ops)
        odd = next((op for op in main.ops if op.times not in (1, self._trip)), None)
        if odd is not None:
            why = f"{odd.kind} ({odd.loc}) runs {odd.times} times, others {self._trip} times"
            raise VerificationError("there may be one loop", [why])
        self._within = {name for op in main.ops if not lasts(op) for name in op.results}
        self._values = dict(main.values)
        self._sums: dict[str, str] = {}
        self._first = {op.results[0]: op.operands[0] for op in main.ops if op.kind == CARRY}
        self._next = {op.operands[1]: op.operands[0] for op in main.ops if op.kind == LAST}
        self._ops: list[Op] = []

    def function(self) -> Function:
        """Returns the function."""
        behind = self._behind()
        for iteration in range(self._trip):
            is_last = iteration == self._trip - 1
            for op in self._main.ops:
                if is_inside(op):
                    self._iterate(op, iteration, is_last=is_last)
                elif is_last if op.results in behind else not iteration:
                    self._ops.append(op)
        values = {name: self._values[name] for name in self._used()}
        return replace(self._main, values=values, ops=tuple(self._ops))

    def _behind(self) -> set[tuple[str, ...]]:
        """Returns the results of ops that follow the loop, or read what it leaves."""
        ops = self._main.ops
        last = max(at for at, op in enumerate(ops) if is_inside(op))
        left: set[str] = set()
        found: set[tuple[str, ...]] = set()
        for at, op in enumerate(ops):
            is_behind = at > last or not left.isdisjoint(op.operands)
            if is_behind and is_inside(op):
                why = f"{op.kind} ({op.loc}) reads what is there behind the last iteration"
                raise VerificationError("a loop waits for itself", [why])
            if is_behind:
                found.add(op.results)
            if is_behind or op.kind in LEAVES:
                left.update(op.results)
        return found

    def _iterate(self, op: Op, iteration: int, *, is_last: bool) -> None:
        """Adds an op of an iteration."""
        if op.kind == CARRY:
            return
        if op.kind == SUM:
            self._add(op, iteration, is_last=is_last)
        elif op.kind == LAST:
            if is_last:
                left = emitted.alias().with_operand(self._name(op.operands[0], iteration))
                self._write(left, op, op.results[0], iteration)
        elif op.kind in (CAT, STACK):
            if is_last:
                self._put_together(op)
        elif op.kind == TAKE:
            (size, *_) = self._values[op.results[0]].shape
            part = emitted.slice_(iteration * size, (iteration + 1) * size, 0)
            result = self._name(op.results[0], iteration)
            self._write(part.with_operand(op.operands[0]), op, result, iteration)
        elif op.kind == SEED:
            step = (iteration * _SEED_STEP + 2**63) % 2**64 - 2**63
            seed = emitted.add(step) if step else emitted.alias()
            result = self._name(op.results[0], iteration)
            self._write(seed.with_operand(op.operands[0]), op, result, iteration)
        else:
            copy = op.with_operands([self._name(name, iteration) for name in op.operands])
            results = tuple(self._name(name, iteration) for name in op.results)
            self._append(replace(copy, results=results), iteration)

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
        self._write(added, op, total, iteration)
        self._sums[result] = total

    def _put_together(self, op: Op) -> None:
        """Adds what puts together what all iterations have of a value."""
        parts = [self._name(op.operands[0], each) for each in range(self._trip)]
        joined = emitted.cat(parts, 0) if op.kind == CAT else emitted.stack(parts)
        self._write(joined, op, op.results[0])

    def _write(self, new: Emitted, op: Op, result: str, iteration: int = 0) -> None:
        """Adds an op in the place of one at the border of a loop."""
        self._append(_on_mesh(new.instead_of(op, result)), iteration)

    def _append(self, op: Op, iteration: int) -> None:
        self._ops.append(replace(op, microbatch=iteration, times=1))

    def _name(self, name: str, iteration: int) -> str:
        """Returns the name of what an iteration has of a value; the first one keeps it."""
        if name in self._first:
            if name not in self._next:
                why = f"%{name} was brought elsewhere, so no iteration says what it is in the next"
                raise VerificationError("a loop can't go on", [why])
            return self._name(self._next[name], iteration - 1) if iteration else self._first[name]
        if name not in self._within or not iteration:
            return name
        return self._copy(name, f"{name}.m{iteration}")

    def _copy(self, name: str, copy: str) -> str:
        """Returns the name of a value like another one."""
        copy = _fresh(copy, self._main.values)
        if copy not in self._values:
            self._values[copy] = replace(self._values[name], name=copy)
        return copy

    def _used(self) -> list[str]:
        """Returns the names of the values that there are."""
        made = (name for op in self._ops for name in op.results)
        return list(dict.fromkeys((*self._main.inputs, *made)))


def _fresh(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _on_mesh(op: Op) -> Op:
    """Returns an op that is computed as a whole on each process of its mesh."""
    return replace(op, dist=None if op.dist is None else OpDist(op.dist.mesh))
