"""Once: what ranks on a slice do for one microbatch, and what they hold for the others meanwhile.

Behind `outline` a loop over microbatches is a few calls. What is computed again is the same for all
of them, so it is chosen for one: its calls are written out, one behind another, as if there were no
other microbatch. What is chosen is written back into the functions: copies stand in the one that
reads them, which is given what they read.

Others are under way at the same time, and each of them holds something (`crowd`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from autopar.cost import Cluster, Lifetimes, kinds_of_ranks, lifetimes
from autopar.ir.ops.loops import CARRY, behind, is_inside
from autopar.ir.program import CALL, MICROBATCH, Function, Op, Program, Ref, Value, callee_of
from autopar.partition.recompute.copies import written
from autopar.partition.recompute.crowd import Crowd, Held
from autopar.partition.recompute.replay import Step, replay
from autopar.partition.recompute.shared import Shared
from autopar.partition.recompute.tape import Tape, tape_of
from autopar.partition.recompute.way import Point, Way

MAIN = -1
"""In the place of a call: of ops that are in none."""


def insiders(main: Function) -> frozenset[str]:
    """Returns the values that each microbatch has one of; what is carried is handed on."""
    inside = (op for op in main.ops if op.kind != CARRY and is_inside(behind(op), MICROBATCH))
    return frozenset(name for op in inside for name in op.results)


def written_out(program: Program) -> tuple[Function, list[int]]:
    """Returns `main` with what it calls in the place of calls.

    Args:
        program: The first iteration, with calls.

    Returns:
        The function, and where in `main` the call of each op is; `MAIN` of those that are in none.
    """
    main, ops, owners = program.main, list[Op](), list[int]()
    values = dict(main.values)
    for at, op in enumerate(main.ops):
        callee = program.functions[callee_of(op)] if op.kind == CALL else None
        ops += [op] if callee is None else callee.ops
        owners += [MAIN] if callee is None else [at] * len(callee.ops)
        values.update({} if callee is None else callee.values)
    return replace(main, ops=tuple(ops), values=values), owners


class Written(NamedTuple):
    """What a function does, and the values around that."""

    ops: Sequence[Op]
    values: Mapping[str, Value]


class Once:
    """What is done for one microbatch.

    Args:
        program: The first iteration, with calls, as ranks on a slice run it.
        inside: The values that each microbatch has one of.
        fixed: Functions that stay as they are.
        alone: Functions that not all ranks call that call others of them.
        shared: What ranks of other kinds decide, or nobody.
        crowd: What is under way beside it.
        cluster: Predicts seconds.
    """

    def __init__(
        self,
        program: Program,
        inside: Collection[str],
        fixed: Collection[str],
        alone: Collection[str],
        shared: Shared,
        crowd: Crowd,
        cluster: Cluster,
    ) -> None:
        self.program, self.crowd = program, crowd
        self._inside, self._fixed, self._alone = inside, fixed, alone
        main, self._owners = written_out(program)
        flat = program.with_main(main)
        both = [*zip(self._owners, flat.main.ops, strict=True)]
        read = {name for at, op in both if self._is_late(at, op) for name in op.operands}
        self.tape: Tape = tape_of(
            flat,
            cluster,
            inside=[at != MAIN or self.is_inside(op) for at, op in both],
            free=[self._is_free(at, fixed) and read.isdisjoint(op.results) for at, op in both],
            shared=shared,
        )

    def _is_free(self, at: int, fixed: Collection[str]) -> bool:
        return at != MAIN and callee_of(self.program.main.ops[at]) not in fixed

    def _is_late(self, at: int, op: Op) -> bool:
        """Returns whether an op of `main` is a part of the backward pass: it reads no copies."""
        return at == MAIN and op.phase == "backward" and self.is_inside(op)

    def is_inside(self, op: Op) -> bool:
        """Returns whether an op of `main` is run for each microbatch."""
        return any(name.removesuffix(".room") in self._inside for name in op.results)

    @cached_property
    def kinds(self) -> Sequence[Mapping[str, int]]:
        """The coordinates of a rank of each kind."""
        return kinds_of_ranks(self.program)

    @cached_property
    def peak_bytes(self) -> int:
        """About the most that a rank holds if nothing is computed again."""
        return self._peak_bytes(self.program)

    def measure(self, way: Way) -> Point:
        """Returns what a plan costs: seconds of one microbatch, and bytes with those of others."""
        steps = self.steps(way)
        seconds = sum(step.added_seconds(self.tape) for step in steps)
        program = with_functions(self.program, self.functions(steps))
        return Point(way, seconds, self._peak_bytes(program))

    def steps(self, way: Way) -> list[Step]:
        """Returns the steps of one microbatch."""
        return replay(self.tape, way, range(len(self.tape.ops)))

    def _peak_bytes(self, program: Program) -> int:
        return max(self._peak_of(lifetimes(program, coords)) for coords in self.kinds)

    def _peak_of(self, memory: Lifetimes) -> int:
        own, most, beside = Held(memory, self.is_own), 0, 0
        at_bytes = memory.at_bytes()
        for at in reversed(range(len(memory.ops))):
            op = memory.ops[at]
            if op.kind == CALL:
                held, others = self.crowd.held_bytes(callee_of(op), own.held)
                most, beside = max(most, at_bytes[at] + held - own.before(at)), others
            else:
                most = max(most, at_bytes[at] + (beside if self.is_inside(op) else 0))
        return most

    def is_own(self, op: Op) -> bool:
        """Returns whether what an op of `main` makes is of a microbatch."""
        return op.kind == CALL or self.is_inside(op)

    def others(self) -> tuple[float, int]:
        """Returns how many others there are by what they hold, and the most that those hold.

        That is if nothing is computed again; one is as many as one microbatch holds at most.
        """
        held = one = 0
        for coords in self.kinds:
            own = Held(lifetimes(self.program, coords), self.is_own)
            others = (self.crowd.held_bytes(name, own.held)[1] for name in self.crowd.beside)
            held = max((held, *others))
            one = max(one, own.most)
        return (held / one if one else 0.0), held

    def functions(self, steps: Sequence[Step]) -> dict[str, Function]:
        """Returns the functions that are others if these steps are run, by name."""
        return functions_of(self.program, self.written(steps))

    def written(self, steps: Sequence[Step]) -> dict[str, Written]:
        """Returns what functions do if these steps are run, by name.

        Those that stay as they are aren't among them.
        """
        ops, values = written(self.tape, steps)
        within: dict[str, list[Op]] = defaultdict(list)
        for owner, each in zip(self._step_owners(steps), ops, strict=True):
            if owner != MAIN:
                within[callee_of(self.program.main.ops[owner])] += each
        return {n: Written(each, values) for n, each in within.items() if n not in self._fixed}

    def _step_owners(self, steps: Sequence[Step]) -> list[int]:
        """Returns the call in which each step is.

        What is run ahead of its place, as copies are, is where what follows it is; what leaves is
        where what it follows is.
        """
        owners, owner, first = [MAIN] * len(steps), MAIN, len(self._owners)
        for number in reversed(range(len(steps))):
            step = steps[number]
            if step.copy < 0 and step.op < first:
                first, owner = step.op, self._owners[step.op]
            owners[number] = owner
        inside = together = MAIN
        for number, step in enumerate(steps):
            if step.moves >= 0 and not step.makes:
                # All ranks that have a value run what sends it.
                owners[number] = inside if self._is_alone(self._owners[step.op]) else together
            elif owners[number] != MAIN:
                inside = owners[number]
                together = together if self._is_alone(inside) else inside
        return owners

    def _is_alone(self, at: int) -> bool:
        return at != MAIN and callee_of(self.program.main.ops[at]) in self._alone


def functions_of(program: Program, written: Mapping[str, Written]) -> dict[str, Function]:
    """Returns the functions of a program that are others if they do this, by name.

    Args:
        program: The program, which calls each at most once.
        written: What functions do.
    """
    read: dict[str, set[str]] = defaultdict(set)
    for name, function in program.functions.items():
        for op in written[name].ops if name in written else function.ops:
            for operand in op.operands if op.kind != CALL else ():
                read[operand].add(name)
    for name in program.main.outputs:
        read[name].add(program.main.name)
    found = {}
    for name, each in written.items():
        before = program.functions[name]
        after = _function(before, each, {n for n in read if read[n] - {name}})
        if after != before:
            found[name] = after
    return found


def _function(before: Function, written: Written, read: Collection[str]) -> Function:
    """Returns a function of other ops, with what is read of it outside."""
    ops, known = written
    made = dict.fromkeys(name for op in ops for name in op.results)
    wanted = dict.fromkeys(name for op in ops for name in op.operands if name not in made)
    inputs = (
        *(n for n in before.inputs if n in wanted),
        *(n for n in wanted if n not in before.inputs),
    )
    renewed = {output for output, _ in before.aliases}
    kept = [n for n in before.outputs if n in renewed or (n in made and n in read)]
    outputs = (*(n for n in made if n in read and n not in before.outputs), *kept)
    values = {name: known[name] for name in (*inputs, *made)}
    return replace(before, inputs=inputs, outputs=outputs, values=values, ops=tuple(ops))


def with_functions(program: Program, functions: Mapping[str, Function]) -> Program:
    """Returns a program in which calls are of some functions in the place of others."""
    if not functions:
        return program
    main = program.main
    values = dict(main.values)
    ops = [*_calls(main.ops, functions)]
    for each in functions.values():
        values.update((name, each.values[name]) for name in each.outputs)
    made = {*main.inputs, *(name for op in ops for name in op.results)}
    values = {name: value for name, value in values.items() if name in made}
    changed = replace(main, ops=tuple(ops), values=values)
    return replace(program, functions={**program.functions, **functions, "main": changed})


def _calls(ops: Sequence[Op], functions: Mapping[str, Function]) -> Iterator[Op]:
    for op in ops:
        callee = functions.get(callee_of(op)) if op.kind == CALL else None
        if callee is None:
            yield op
        else:
            given = op.with_args({"operands": tuple(map(Ref, callee.inputs))})
            yield replace(given, results=callee.outputs)
