"""Outline: what a process does for each microbatch becomes a function.

So it is there once, however many microbatches there are:

    %h.m3 = call(callee="stage1.forward", operands=[%x.m3, %w])

In a pipeline it is one function for each task of a stage, and a schedule is a sequence of calls.

Sums over microbatches are handed from call to call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from autopar.ir import emitted
from autopar.ir.memory.accumulating import ADDS, with_products_added
from autopar.ir.ops.loops import CARRY, LAST, REDUCE
from autopar.ir.program import CALL, MICROBATCH, Arg, Function, Op, Program, Ref, Value, on_mesh
from autopar.ir.unroll import has_loops, unrolled, with_seeds
from autopar.partition.pipeline.bodies import Body, bodies_of
from autopar.partition.pipeline.of_ops import OpTasks
from autopar.partition.pipeline.order import in_order
from autopar.partition.pipeline.runs import Runs, Widths
from autopar.partition.pipeline.schedules import DEFAULT_SCHEDULE, SCHEDULES
from autopar.partition.pipeline.tasks import Task

LOOP = "loop"
"""The only task where there is no pipeline: all that is done for a microbatch."""


@dataclass(frozen=True)
class Outline:
    """Makes functions of what a loop does: one, or one for each task of a pipeline.

    Attributes:
        pipeline: The mesh axis along which the stages lie; "" if there are none.
        schedule: The name of the schedule, which says where a stage runs.
        widths: At how many indices of the axis the processes of stages are; none: at one each.
        functions: Whether it does; who looks into microbatches wants them unrolled.
    """

    name: ClassVar[str] = "outline"
    pipeline: str = ""
    schedule: str = DEFAULT_SCHEDULE
    widths: Widths = ()
    functions: bool = True

    def __call__(self, program: Program) -> Program:
        """Returns the program with calls in the place of ops."""
        if not self.functions:
            return program
        program = unrolled(program, but=MICROBATCH)
        if not has_loops(program.main):
            return program
        program = program.with_main(with_seeds(program.main))
        return _Outlining(program, bodies_of(program.main, self._tasks(program))).program()

    def _tasks(self, program: Program) -> Sequence[Task | None]:
        """Returns the task that each op is a part of; None if it stays in `main`."""
        main, mesh = program.main, program.mesh
        if not self.pipeline or mesh is None:
            return [Task(0, 0, LOOP) for _ in main.ops]
        stages, runs = (
            1 + max(op.stage for op in main.ops),
            Runs.of(mesh, self.pipeline, self.widths),
        )
        pipeline = SCHEDULES[self.schedule].pipeline(len(runs), stages, 1)
        tasks = OpTasks(main, self.pipeline, pipeline, runs)
        return [None if at in tasks.sends else task for at, task in enumerate(tasks.of_ops)]


class _Outlining:
    """Rewrites one program."""

    def __init__(self, program: Program, bodies: Sequence[Body]) -> None:
        self._program, self._main = program, program.main
        self._values = dict(self._main.values)
        self._functions = dict(program.functions)
        self._of = {at: body for body in bodies for at in body.ops}
        self._read = self._readers()

    def program(self) -> Program:
        """Returns the program with calls."""
        ops: list[Op] = []
        places: list[int] = []
        for at, op in enumerate(self._main.ops):
            body = self._of.get(at)
            if body is None:
                ops.append(op)
                places.append(at)
            elif at == body.ops[-1]:
                around = [*self._outlined(body)]
                ops += around
                places += [at] * len(around)
        ordered = [ops[at] for at in in_order(ops, [(float(place), False) for place in places])]
        made = (name for op in ordered for name in op.results)
        names = dict.fromkeys((*self._main.inputs, *made))
        values = {name: self._values[name] for name in names}
        main = replace(self._main, ops=tuple(ordered), values=values)
        return replace(self._program, functions={**self._functions, "main": main})

    def _readers(self) -> dict[str, set[Body | None]]:
        """Returns the bodies that read each value; None stands for what is in none."""
        read: dict[str, set[Body | None]] = {name: {None} for name in self._main.outputs}
        for at, op in enumerate(self._main.ops):
            for name in op.operands:
                read.setdefault(name, set()).add(self._of.get(at))
        return read

    def _outlined(self, body: Body) -> Iterator[Op]:
        """Yields the call of a new function, with what is before and behind it."""
        ops = [self._main.ops[at] for at in body.ops]
        sums = [_Sum(op, self._main.values[op.results[0]]) for op in ops if op.kind == REDUCE]
        for each in sums:
            self._values.update((value.name, value) for value in each.values)
        function = self._function(body, ops, sums)
        if not function.outputs:  # Nobody reads what it computes.
            return
        self._functions[function.name] = function
        for each in sums:
            yield from each.before()
        args = ("callee", function.name), ("operands", tuple(map(Ref, function.inputs)))
        yield replace(ops[0], kind=CALL, args=args, results=function.outputs, origin=None, plan=())
        for each in sums:
            yield each.behind()

    def _function(self, body: Body, ops: Sequence[Op], sums: Sequence[_Sum]) -> Function:
        """Returns the function of a body, in which values are called as in `main`."""
        adding = {each.op.results: each.add() for each in sums}
        within = tuple(replace(adding.get(op.results, op), loops=()) for op in ops)
        made = dict.fromkeys(name for op in within for name in op.results)
        read = dict.fromkeys(name for op in within for name in op.operands)
        inputs = tuple(name for name in read if name not in made)
        left = (name for name in made if self._read.get(name, set()) - {body})
        outputs = (*left, *(each.new for each in sums))
        values = {name: self._values[name] for name in (*inputs, *made)}
        aliases = tuple((each.new, each.old) for each in sums)
        function = Function(_name(body), inputs, outputs, values, within, aliases)
        return with_products_added(function)


def _name(body: Body) -> str:
    task = body.task
    name = "microbatch" if task.phase == LOOP else f"stage{task.stage}.{task.phase}"
    return f"{name}.{body.number}" if body.number else name


class _Sum:
    """A sum over microbatches, which begins with zeros and is handed from call to call.

    Args:
        op: The op that sums up.
        total: Its result.

    Attributes:
        op: The op.
        old, new: What a call gets of the sum, and what it returns.
        values: All values that aren't there yet.
    """

    def __init__(self, op: Op, total: Value) -> None:
        self.op = op
        self._total = total
        self.old, self.new = f"{total.name}.before", f"{total.name}.after"
        self._zero = f"{total.name}.zero"
        names = (self.old, self.new, self._zero)
        self.values = [replace(total, name=name) for name in names]

    def before(self) -> Iterator[Op]:
        """Yields what hands the sum to the first call, and to the next ones."""
        zero = emitted.full(self._total.shape, 0, self._total.dtype).instead_of(self.op, self._zero)
        yield replace(on_mesh(zero), loops=())
        carried = self._border(CARRY, (("self", Ref(self._zero)),), self.old)
        yield replace(carried, loops=())

    def add(self) -> Op:
        """Returns what adds that of an iteration."""
        (part,) = self.op.operands
        added = emitted.combine("sum", part, self._total.dtype).with_operand(self.old)
        op = added.instead_of(self.op, self.new)
        return on_mesh(replace(op, plan=((ADDS, self._total.name),)))

    def behind(self) -> Op:
        """Returns what the sum is behind the last call."""
        args = ("self", Ref(self.new)), ("carried", Ref(self.old))
        return self._border(LAST, args, self._total.name)

    def _border(self, kind: str, args: tuple[tuple[str, Arg], ...], result: str) -> Op:
        return on_mesh(replace(self.op, kind=kind, args=args, results=(result,)))
