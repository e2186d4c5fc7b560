"""Overlap: which collectives run beside what follows, and where each is awaited.

The runtime starts a collective where the program has it, if its declaration says so, and waits
where the result is read first: by an op, by what is written into a stored input, or by who looks at
it before that. Of those that are alone, the next one waits for the one before; of what is sent from
a slice of the mesh to another, for that between the same two. What is received has a place of its
own, so a rank is ready for several. What nobody has waited for when all ops are done is awaited
then: a collective ends before its memory is freed.

The emitter writes code by this plan, and memory is predicted by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autopar.ir import emitted
from autopar.ir.collectives import DECLARED, link_of
from autopar.ir.expr.expression import IntExpr
from autopar.ir.memory.updates import Writes
from autopar.ir.program import Function, Op, Value


@dataclass(frozen=True)
class Overlap:
    """Where asynchronous collectives are awaited, by their results; ops by their position.

    Attributes:
        before: Those that are awaited before an op, in order; under the number of ops, at the end.
        after: Those that are awaited behind an op, for what is looked at or written then.
    """

    before: Mapping[int, tuple[str, ...]]
    after: Mapping[int, tuple[str, ...]]


def async_collectives(
    function: Function,
    members: Callable[[Op], int],
    shape: Callable[[Value], Sequence[IntExpr]],
) -> frozenset[str]:
    """Returns the results of the collectives that a rank starts.

    Args:
        function: The function.
        members: Returns how many ranks take part in a collective.
        shape: Returns the shape of a value on the rank.
    """
    read = frozenset(name for op in function.ops for name in op.operands)

    def is_async(op: Op) -> bool:
        found, value = DECLARED[op.kind], function.values[op.results[0]]
        if not found.is_async(op.arg("monoid"), value.dtype) or members(op) <= 1:
            return False
        # What no op reads is awaited at the end; until then it would keep what it sends.
        if found.start is not None and found.start.keeps_operand and value.name not in read:
            return False
        return 0 not in shape(value)

    collectives = (op for op in function.ops if op.kind in DECLARED)
    return frozenset(op.results[0] for op in collectives if is_async(op))


def plan_overlap(
    function: Function, async_results: frozenset[str], writes: Writes | None = None
) -> Overlap:
    """Returns where what a function starts is awaited.

    Args:
        function: The function.
        async_results: The results of what it starts (see `async_collectives`).
        writes: What it writes into stored inputs.
    """
    plan = _Plan()
    rooms = {op.results[0] for op in function.ops if op.kind == emitted.EMPTY}
    for at, op in enumerate(function.ops):
        if plan.pending:
            plan.wait(plan.before, at, op.operands)
        if not async_results.isdisjoint(op.results):
            plan.start(at, op, receives=not rooms.isdisjoint(op.operands))
        if plan.pending and writes is not None:
            plan.wait(plan.after, at, _needed(writes, at))
    plan.wait(plan.before, len(function.ops), tuple(plan.pending))
    return Overlap(plan.before, plan.after)


def _needed(writes: Writes, at: int) -> Iterable[str]:
    """Yields the values that are looked at or written behind an op."""
    if at == writes.guard:
        yield from writes.looked
    yield from (output for output, _ in writes.after.get(at, ()))


class _Plan:
    """The plan while it grows, and kinds and links of what is under way, by their results."""

    def __init__(self) -> None:
        self.before: dict[int, tuple[str, ...]] = {}
        self.after: dict[int, tuple[str, ...]] = {}
        self.pending: dict[str, tuple[str, str]] = {}

    def wait(self, where: dict[int, tuple[str, ...]], at: int, names: Iterable[str]) -> None:
        if found := tuple(name for name in names if self.pending.pop(name, None)):
            where[at] = (*where.get(at, ()), *found)

    def start(self, at: int, op: Op, *, receives: bool) -> None:
        start, own = DECLARED[op.kind].start, (op.kind, link_of(op))
        if start is not None and start.alone and not receives:
            others = [name for name, each in self.pending.items() if each == own]
            self.wait(self.before, at, others)
        self.pending[op.results[0]] = own
