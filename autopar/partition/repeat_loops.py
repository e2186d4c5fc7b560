"""Repeat loops: a loop over microbatches that is one call becomes one op.

    %total: ..., %rows: ... = repeat(body="microbatch", trip=32, carried=[%zero, %seed],
                                     sliced=[%x.parts], invariant=[%w])

So a rank's program is as large whatever there are of microbatches, and what looks at it looks once.
Sums are carried from iteration to iteration and written in place, seeds are carried too.

Where stages or slices of the mesh take turns, microbatches are on their way in several places at
once, and stay calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from autopar.ir import emitted
from autopar.ir.emitted import Emitted
from autopar.ir.ops.loops import CARRY, CAT, LAST, SEED, STACK, TAKE, is_inside
from autopar.ir.program import (
    CALL,
    MICROBATCH,
    REPEAT,
    Arg,
    Function,
    Op,
    Program,
    Ref,
    Value,
    callee_of,
    on_mesh,
)
from autopar.ir.unroll import next_seed


@dataclass(frozen=True)
class RepeatLoops:
    """Replaces the loop over microbatches by one op, if it is one call.

    Attributes:
        pipeline: The mesh axis along which stages lie, which take turns; "" if there are none.
    """

    name: ClassVar[str] = "repeat"
    pipeline: str = ""

    def __call__(self, program: Program) -> Program:
        """Returns the program with the op."""
        loop = None if self.pipeline else _loop_of(program.main)
        return program if loop is None else _Rewriting(program, loop).program()


class _Loop(NamedTuple):
    """A loop that is one call.

    Attributes:
        call: The call.
        taken: What brings parts.
        carried: What is carried into an iteration, with what it leaves for the next.
        seeds: What makes a seed for each iteration.
        joined: What puts together what all iterations have.
    """

    call: Op
    taken: Sequence[Op]
    carried: Sequence[tuple[Op, Op]]
    seeds: Sequence[Op]
    joined: Sequence[Op]

    @property
    def border(self) -> set[tuple[str, ...]]:
        """The results of all ops but the call."""
        carried = (op for pair in self.carried for op in pair)
        return {op.results for op in (*self.taken, *carried, *self.seeds, *self.joined)}


def _loop_of(main: Function) -> _Loop | None:
    """Returns the loop over microbatches; None if there is none, or it isn't one call."""
    inside = [op for op in main.ops if is_inside(op, MICROBATCH)]
    calls = [op for op in inside if op.kind == CALL]
    if len(calls) != 1 or any(op.arg("dim", 0) for op in inside if op.kind in (TAKE, CAT)):
        return None
    kinds = {kind: [op for op in inside if op.kind == kind] for kind in _BORDER}
    last = {op.operands[1]: op for op in kinds[LAST]}
    if last.keys() != {op.results[0] for op in kinds[CARRY]}:
        return None
    pairs = [(op, last[op.results[0]]) for op in kinds[CARRY]]
    joined = [*kinds[CAT], *kinds[STACK]]
    loop = _Loop(calls[0], kinds[TAKE], pairs, kinds[SEED], joined)
    return loop if len(loop.border) + 1 == len(inside) else None


_BORDER = (TAKE, CARRY, SEED, LAST, CAT, STACK)


class _Rewriting:
    """Rewrites one program.

    Args:
        program: The program.
        loop: Its loop.
    """

    def __init__(self, program: Program, loop: _Loop) -> None:
        self._program, self._main, self._loop = program, program.main, loop
        self._callee = program.functions[callee_of(loop.call)]
        self._values = dict(self._main.values)
        self._trip = dict(loop.call.loops)[MICROBATCH]

    def program(self) -> Program:
        """Returns the program with the op in the place of the loop."""
        ops: list[Op] = []
        border = self._loop.border
        for op in self._main.ops:
            if op is self._loop.call:
                ops += self._around()
            elif op.results not in border:
                ops.append(op)
        used = dict.fromkeys((*self._main.inputs, *(name for op in ops for name in op.results)))
        values = {name: self._values[name] for name in used}
        functions = {**self._program.functions, self._callee.name: self._body()}
        functions["main"] = replace(self._main, ops=tuple(ops), values=values)
        return replace(self._program, functions=functions)

    def _around(self) -> Iterator[Op]:
        """Yields the op, with what is before and behind it."""
        loop, sliced = self._loop, list[str]()
        for op in loop.taken:
            sliced.append(self._parts(op.results[0]))
            yield self._view(op, op.operands[0], sliced[-1])
        args: tuple[tuple[str, Arg], ...] = (
            ("body", self._callee.name),
            ("trip", self._trip),
            ("carried", _refs(op.operands[0] for op in self._carriers())),
            ("sliced", _refs(sliced)),
            ("invariant", _refs(self._invariant())),
        )
        seeds = [self._like(op.results[0], "last") for op in loop.seeds]
        joined = [
            self._parts(op.operands[0]) if op.kind == CAT else op.results[0] for op in loop.joined
        ]
        results = (*(last.results[0] for _, last in loop.carried), *seeds, *joined)
        yield replace(loop.call, kind=REPEAT, args=args, results=results, loops=())
        for op, parts in zip(loop.joined, joined, strict=True):
            if op.kind == CAT:
                yield self._view(op, parts, op.results[0])

    def _carriers(self) -> list[Op]:
        """Returns what is carried into an iteration."""
        return [*(carry for carry, _ in self._loop.carried), *self._loop.seeds]

    def _given(self) -> list[str]:
        """Returns what differs between iterations: what is carried, and parts."""
        return [op.results[0] for op in (*self._carriers(), *self._loop.taken)]

    def _left(self) -> list[str]:
        """Returns what an iteration leaves, but for seeds."""
        lasts = (last.operands[0] for _, last in self._loop.carried)
        return [*lasts, *(op.operands[0] for op in self._loop.joined)]

    def _invariant(self) -> list[str]:
        """Returns what is the same in all iterations."""
        known = {*self._callee.producers(), *self._given()}
        read = dict.fromkeys((*self._callee.inputs, *self._left()))
        return [name for name in read if name not in known]

    def _body(self) -> Function:
        """Returns what an iteration does."""
        inputs, writer = (*self._given(), *self._invariant()), _Body(self._callee)
        writer.values.update((name, self._values[name]) for name in inputs)
        left = [writer.returned(name, self._loop.call) for name in self._left()]
        seeds = [writer.next_seed(op) for op in self._loop.seeds]
        at = len(self._loop.carried)
        outputs = (*left[:at], *seeds, *left[at:])
        ops = tuple(writer.ops)
        return replace(self._callee, inputs=inputs, outputs=outputs, values=writer.values, ops=ops)

    def _view(self, op: Op, operand: str, result: str) -> Op:
        """Returns a view in the place of what takes parts, or puts them together."""
        view = emitted.view(self._values[result].shape).with_operand(operand)
        return on_mesh(replace(view.instead_of(op, result), loops=()))

    def _parts(self, name: str) -> str:
        """Adds what all iterations have of a value, stacked; returns its name."""
        value, parts = self._values[name], self._like(name, "parts")
        dist = None if value.dist is None else value.dist.stacked(self._trip)
        self._values[parts] = replace(
            self._values[parts], shape=(self._trip, *value.shape), dist=dist
        )
        return parts

    def _like(self, name: str, what: str) -> str:
        """Adds a value like another; returns its name."""
        return _added(self._values, self._values[name], f"{name}.{what}")


class _Body:
    """The ops of an iteration while they grow.

    Args:
        function: The function that was called.
    """

    def __init__(self, function: Function) -> None:
        self.ops, self.values = [*function.ops], dict(function.values)
        self._free = {*function.producers()}

    def returned(self, name: str, call: Op) -> str:
        """Returns what has a value among the results: what the function makes has it once."""
        if name in self._free:
            self._free.discard(name)
            return name
        return self._add(emitted.alias().with_operand(name), call, name, "left")

    def next_seed(self, op: Op) -> str:
        """Adds the seed of the next iteration; returns its name."""
        (seed,) = op.results
        return self._add(next_seed().with_operand(seed), op, seed, "next")

    def _add(self, made: Emitted, op: Op, name: str, what: str) -> str:
        result = _added(self.values, self.values[name], f"{name}.{what}")
        self.ops.append(on_mesh(replace(made.instead_of(op, result), loops=())))
        return result


def _added(values: dict[str, Value], like: Value, name: str) -> str:
    """Adds a value like another, under a name that is free; returns that."""
    name = emitted.unused(name, values)
    values[name] = replace(like, name=name)
    return name


def _refs(names: Iterable[str]) -> tuple[Ref, ...]:
    return tuple(map(Ref, names))
