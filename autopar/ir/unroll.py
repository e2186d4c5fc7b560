"""Unroll: the ops of a loop once for each iteration, one iteration after another.

Completion and partition see what is the same in all iterations once. What follows has to know them
apart: microbatches of a pipeline run in the order of a schedule, and each holds memory of its own.
Ops of other loops say of which iteration they are, so that those that are alike may be one in the
end (see `autopar.partition.roll`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.base.errors import VerificationError
from autopar.ir import emitted
from autopar.ir.emitted import Emitted
from autopar.ir.expr.expression import Expr, axes_of, substitute
from autopar.ir.iterations import Iteration, within
from autopar.ir.memory.accumulating import OVER, in_place
from autopar.ir.ops.loops import (
    CARRY,
    CAT,
    HOLD,
    LAST,
    LEAVES,
    PARTS,
    REDUCE,
    SEED,
    STACK,
    TAKE,
    behind,
    entered,
    is_inside,
)
from autopar.ir.program import MICROBATCH, Arg, Function, Loops, Op, Program, Ref, on_mesh


def unrolled(program: Program, but: str = "") -> Program:
    """Returns a program, serial or partitioned, without loops, but for one of this name."""
    main = _without_holds(program.main)
    while loops := [op.loops for op in main.ops if op.loops and op.loops[-1][0] != but]:
        # Within one iteration of a loop those of the loops in it are one after another.
        name, trip = max(loops, key=len)[-1]
        main = _Unroller(with_seeds(main) if name == MICROBATCH else main, name, trip).function()
    main = _with_views(main)
    return program if main is program.main else program.with_main(main)


def _without_holds(main: Function) -> Function:
    """Returns a function in which iterations read what is held for them where it is."""
    held = {op.results[0]: op.operands[0] for op in main.ops if op.kind == HOLD}
    if not held:
        return main
    values = {name: value for name, value in main.values.items() if name not in held}
    kept = (op for op in main.ops if op.kind != HOLD)
    ops = (op.with_operands([held.get(name, name) for name in op.operands]) for op in kept)
    return replace(main, values=values, ops=tuple(ops))


def _with_views(main: Function) -> Function:
    """Returns a function that knows of parts of a loop only that they are views."""
    if all(op.kind != PARTS for op in main.ops):
        return main
    return replace(main, ops=tuple(_as_view(main, op) for op in main.ops))


def _as_view(main: Function, op: Op) -> Op:
    if op.kind != PARTS:
        return op
    (operand,), (result,) = op.operands, op.results
    view = emitted.view(main.values[result].shape).with_operand(operand)
    return on_mesh(view.instead_of(op, result))


def first_iteration(main: Function, loop: str = MICROBATCH) -> Function:
    """Returns a function that runs the first iteration of a loop, as if there were no other.

    Values are called as before, so what is given and what is left are ops of their own.
    """
    ops = [
        on_mesh(given.instead_of(op, op.results[0])) if (given := _only(main, op, loop)) else op
        for op in main.ops
    ]
    return replace(main, ops=tuple(replace(op, loops=_around(op.loops, loop)) for op in ops))


def _around(loops: Loops, loop: str) -> Loops:
    return tuple(each for each in loops if each[0] != loop)


def _only(main: Function, op: Op, loop: str) -> Emitted | None:
    """Returns what stands for an op at the border of a loop of one iteration; None for others."""
    inside = entered(op) or (op.loops[-1][0] if op.kind in LEAVES else "")
    if inside != loop:
        return None
    if op.kind == TAKE:
        dim = op.arg("dim", 0)
        assert isinstance(dim, int)
        taken = emitted.slice_(0, main.values[op.results[0]].shape[dim], dim)
        return taken.with_operand(op.operands[0])
    if op.kind in (CAT, STACK):
        # It is as large as what all iterations have.
        value = main.values[op.results[0]]
        return emitted.full(value.shape, 0, value.dtype)
    return emitted.alias().with_operand(op.operands[0])


def iteration_name(name: str, iteration: int, loop: str = MICROBATCH) -> str:
    """Returns how a value of a loop is called in an iteration; the first one keeps the name."""
    if not iteration:
        return name
    # Passes tell values of one name apart by a bare number, and a loop may be called as an op.
    return f"{name}.m{iteration}" if loop == MICROBATCH else f"{name}.{loop}.t{iteration}"


def has_loops(main: Function) -> bool:
    """Returns whether a function has loops."""
    return any(op.loops for op in main.ops)


def with_seeds(main: Function) -> Function:
    """Returns a function whose random ops are given a seed that tells microbatches apart.

    Each process makes it of the seed that it has.
    """
    values, ops, known = dict(main.values), list[Op](), dict[tuple[object, ...], str]()
    for op in main.ops:
        seed = op.arg("seed")
        if is_inside(op, MICROBATCH) and op.arg("number") is not None and isinstance(seed, Ref):
            key = seed.name, op.stage, None if op.dist is None else op.dist.mesh
            if key not in known:
                name = known[key] = emitted.unused(f"{seed.name}.{op.results[0]}", values)
                values[name] = replace(values[seed.name], name=name, role="activation")
                made = replace(op, kind=SEED, args=(("self", seed),), results=(name,), loops=())
                ops.append(on_mesh(replace(made, plan=())))
            op = op.with_args({"seed": Ref(known[key])})
        ops.append(op)
    return replace(main, values=values, ops=tuple(ops))


_START = {"sum": 0, "prod": 1}
"""What reductions begin with, by monoid; others begin with the first part."""

_SEED_STEP = 0x9E3779B97F4A7C15
"""Between the seeds of iterations: odd, and far from what users give, or count steps by."""


def next_seed(iterations: int = 1) -> Emitted:
    """Returns what makes the seed of so many iterations later of that of an iteration."""
    step = (iterations * _SEED_STEP + 2**63) % 2**64 - 2**63
    return emitted.add(step) if step else emitted.alias()


class _Unroller:
    """Unrolls a loop of a function, in which there is no other one.

    What isn't in the loop stays where it stands: in the first iteration, or in the last one if it
    reads what the loop leaves. But iterations that aren't microbatches lie together, so that they
    may be rolled again, and so they begin alike: with room for what they put together, and sums of
    nothing.

    Args:
        main: The function.
        loop: The name of the loop.
        trip: How often it runs.
    """

    def __init__(self, main: Function, loop: str, trip: int) -> None:
        self._main, self._loop, self._trip = main, loop, trip
        inside = [op for op in main.ops if is_inside(behind(op), loop)]
        self._within = {name for op in inside for name in op.results}
        self._values = dict(main.values)
        self._written: dict[str, str] = {}
        self._first = {op.results[0]: op.operands[0] for op in inside if op.kind == CARRY}
        self._next = {
            op.operands[1]: op.operands[0]
            for op in main.ops
            if self._leaves(op) and op.kind == LAST
        }
        self._ops: list[Op] = []

    def function(self) -> Function:
        """Returns the function."""
        behind, main = self._behind(), self._main.ops
        inside = [op for op in main if is_inside(op, self._loop)]
        own, together = {op.results for op in inside}, self._loop != MICROBATCH
        if together:
            around = own | behind
            self._ops += (op for op in main if op.results not in around)
            self._begin(inside)
        for iteration in range(self._trip):
            is_last = iteration == self._trip - 1
            for op in inside if together or 0 < iteration < self._trip - 1 else main:
                if op.results in own:
                    self._iterate(op, iteration, is_last=is_last)
                elif is_last if op.results in behind else not iteration:
                    self._ops.append(op)
        if together:
            self._ops += (op for op in main if op.results in behind)
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

    def _begin(self, inside: Sequence[Op]) -> None:
        """Adds what iterations write their parts over."""
        for op in inside:
            start = _START.get(str(op.arg("monoid"))) if op.kind == REDUCE else 0
            if not self._leaves(op) or op.kind not in (REDUCE, CAT) or start is None:
                continue
            (result,) = op.results
            value, room = self._values[result], self._copy(result, f"{result}.room")
            begun = on_mesh(emitted.full(value.shape, start, value.dtype).instead_of(op, room))
            self._ops.append(replace(begun, loops=_around(op.loops, self._loop)))
            self._written[result] = room

    def _iterate(self, op: Op, iteration: int, *, is_last: bool) -> None:
        """Adds an op of an iteration."""
        if entered(op) == self._loop:
            self._enter(op, iteration)
        elif not self._leaves(op):
            self._copy_op(op, iteration)
        elif op.kind == REDUCE:
            self._combine(op, iteration, is_last=is_last)
        elif op.kind == LAST:
            if is_last:
                left = emitted.alias().with_operand(self._name(op.operands[0], iteration))
                self._write(left, op, op.results[0], iteration)
        elif op.kind == CAT and self._loop != MICROBATCH:
            self._insert(op, iteration, is_last=is_last)
        elif op.kind in (CAT, STACK) and is_last:
            self._put_together(op)

    def _leaves(self, op: Op) -> bool:
        """Returns whether an op's result is there behind the loop alone."""
        return op.kind in LEAVES and op.loops[-1][0] == self._loop

    def _enter(self, op: Op, iteration: int) -> None:
        """Adds what an iteration is given; what is carried is there already."""
        if op.kind == TAKE:
            dim = op.arg("dim", 0)
            assert isinstance(dim, int)
            size = self._values[op.results[0]].shape[dim]
            given = emitted.slice_(iteration * size, (iteration + 1) * size, dim)
        elif op.kind == SEED:
            given = next_seed(iteration)
        else:
            return
        result = self._name(op.results[0], iteration)
        self._write(given.with_operand(op.operands[0]), op, result, iteration)

    def _copy_op(self, op: Op, iteration: int) -> None:
        """Adds an op as it is in an iteration."""
        copy = op.with_operands([self._name(name, iteration) for name in op.operands])
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

    def _combine(self, op: Op, iteration: int, *, is_last: bool) -> None:
        """Adds what reduces what an iteration has with what those before have."""
        (operand,), (result,) = op.operands, op.results
        part, before = self._name(operand, iteration), self._written.get(result)
        if before is None:
            self._written[result] = part
            return
        monoid, dtype = str(op.arg("monoid")), self._values[result].dtype
        combined = emitted.combine(monoid, part, dtype).with_operand(before)
        self._write_over(combined, op, in_place(monoid, result), iteration, is_last=is_last)

    def _insert(self, op: Op, iteration: int, *, is_last: bool) -> None:
        """Adds what writes what an iteration has of a value to its place in that of all."""
        (operand,), (result,), dim = op.operands, op.results, op.arg("dim", 0)
        assert isinstance(dim, int)
        size, part = self._values[operand].shape[dim], self._name(operand, iteration)
        put = emitted.insert(part, iteration * size, (iteration + 1) * size, dim)
        put = put.with_operand(self._written[result])
        self._write_over(put, op, (OVER, "operand"), iteration, is_last=is_last)

    def _write_over(
        self, new: Emitted, op: Op, plan: tuple[str, str], iteration: int, *, is_last: bool
    ) -> None:
        """Adds what is written over what iterations have left so far."""
        (result,) = op.results
        name = result if is_last else self._copy(result, f"{result}.s{iteration}")
        self._write(new, replace(op, plan=(*op.plan, plan)), name, iteration)
        self._written[result] = name

    def _put_together(self, op: Op) -> None:
        """Adds what puts together what all iterations have of a value."""
        parts = [self._name(op.operands[0], each) for each in range(self._trip)]
        dim = op.arg("dim", 0)
        assert isinstance(dim, int)
        joined = emitted.cat(parts, dim) if op.kind == CAT else emitted.stack(parts)
        self._write(joined, op, op.results[0])

    def _write(self, new: Emitted, op: Op, result: str, iteration: int = 0) -> None:
        """Adds an op in the place of one at the border of a loop."""
        self._append(on_mesh(new.instead_of(op, result)), iteration)

    def _append(self, op: Op, iteration: int) -> None:
        op = replace(op, loops=_around(op.loops, self._loop))
        if self._loop == MICROBATCH:
            self._ops.append(replace(op, microbatch=iteration))
        else:
            self._ops.append(within(op, Iteration(self._loop, iteration)))

    def _name(self, name: str, iteration: int) -> str:
        """Returns the name of what an iteration has of a value; the first one keeps it."""
        if name in self._first:
            if name not in self._next:
                why = f"%{name} was brought elsewhere, so no iteration says what it is in the next"
                raise VerificationError("a loop can't go on", [why])
            return self._name(self._next[name], iteration - 1) if iteration else self._first[name]
        if name not in self._within or not iteration:
            return name
        return self._copy(name, iteration_name(name, iteration, self._loop))

    def _copy(self, name: str, copy: str) -> str:
        """Returns the name of a value like another one."""
        copy = emitted.unused(copy, self._main.values)
        if copy not in self._values:
            self._values[copy] = replace(self._values[name], name=copy)
        return copy

    def _used(self) -> list[str]:
        """Returns the names of the values that there are."""
        made = (name for op in self._ops for name in op.results)
        return list(dict.fromkeys((*self._main.inputs, *made)))
