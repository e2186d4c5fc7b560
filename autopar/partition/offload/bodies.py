"""Bodies: functions that are called with what waits in the host's memory bring it themselves.

What a microbatch does in a task is a function, which is given stored tensors as they are. So each
call brings what it reads, bucket by bucket, as a phase of single ops would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from autopar.ir import emitted
from autopar.ir.program import CALLS, Function, Op, Program, callee_of, trip_of
from autopar.partition.offload.places import Placed, placed
from autopar.partition.offload.uses import Segment, segments, uses_of

ALIAS = emitted.alias().kind


@dataclass(frozen=True)
class Body:
    """A function that is given stored inputs.

    Attributes:
        function: The function.
        inputs: Its inputs that are.
        calls: How often it is called.
    """

    function: Function
    inputs: tuple[str, ...]
    calls: int

    def buckets(self, program: Program) -> Iterator[tuple[Segment, list[Placed]]]:
        """Yields its segments, with the buckets that each needs."""
        within = program.with_main(self.function)
        for segment in segments(self.function):
            yield segment, placed(uses_of(within, self.inputs, segment), segment)


def bodies(program: Program, names: Collection[str]) -> Iterator[Body]:
    """Yields the functions that `main` gives stored inputs.

    Args:
        program: A partitioned program in which calls are given them directly.
        names: The inputs that wait in the host's memory.
    """
    calls = [op for op in program.main.ops if op.kind in CALLS]
    counts: Counter[str] = Counter()
    for op in calls:
        counts[callee_of(op)] += trip_of(op)
    for op in {callee_of(op): op for op in calls}.values():
        function = program.functions[callee_of(op)]
        both = zip(function.inputs, op.operands, strict=True)
        given = tuple(inner for inner, outer in both if outer in names)
        if given:
            yield Body(function, given, counts[function.name])


def given_directly(program: Program, names: Collection[str]) -> Program:
    """Returns a program in which calls are given stored inputs, not other names of them.

    Args:
        program: A partitioned program.
        names: The inputs that wait in the host's memory.
    """
    main = program.main
    elsewhere = {name for op in main.ops if op.kind not in (*CALLS, ALIAS) for name in op.operands}
    elsewhere.update(main.outputs)
    called: dict[str, str] = {}
    ops: list[Op] = []
    for op in main.ops:
        source = called.get(op.operands[0], op.operands[0]) if op.kind == ALIAS else ""
        if source in names and op.results[0] not in elsewhere:
            called[op.results[0]] = source
        elif called:
            ops.append(op.with_operands([called.get(name, name) for name in op.operands]))
        else:
            ops.append(op)
    if not called:
        return program
    values = {name: value for name, value in main.values.items() if name not in called}
    return program.with_main(replace(main, ops=tuple(ops), values=values))
