"""Decisions: which ops of a completed program had a choice, and which just follow their neighbours.

An op follows where nothing is communicated around it and its choice is what each of its neighbours
suggests. A plan that pins the others and what is stored leaves it no other choice, whatever the
cluster.
"""

from __future__ import annotations

from autopar.completion.problem.op_strategies import Call, CallTable
from autopar.completion.problem.space import Space
from autopar.completion.problem.splits import Splits
from autopar.ir.program import Op, Program
from autopar.ir.rules.distribution import consumed, produced


def decisive_ops(program: Program, calls: CallTable) -> list[Op]:
    """Returns the ops of a completed program that don't just follow their neighbours.

    Args:
        program: Completed, with bodies.
        calls: Of a space on the program's mesh.
    """
    values = program.main.values
    return [
        op
        for op in program.main.ops
        if op.dist is not None
        and (call := calls.call_of(op, values)).has_rule
        and not _follows(op, call, program, calls.space)
    ]


def _follows(op: Op, call: Call, program: Program, space: Space) -> bool:
    dist = op.dist
    assert dist is not None
    if dist.body or dist.pending:
        return False
    around = [consumed(call.rule, dist, position) for position in range(len(op.operands))]
    around += [produced(call.rule, dist, position) for position in range(len(op.results))]
    splits = space.table.none
    for position, (name, layout) in enumerate(
        zip((*op.operands, *op.results), around, strict=True)
    ):
        stored = program.main.values[name].dist
        if stored is None or layout != stored.normalized():
            return False
        merged = _merged(space, splits, call.suggest(position, space.complete(space.form(stored))))
        if merged is None:
            return False
        splits = merged
    choice = call.choice(splits)
    return choice is not None and choice.dist == dist


def _merged(space: Space, splits: Splits, more: Splits) -> Splits | None:
    """Returns two splits together; None if they put an axis at different places."""
    for axis, place in more.places.items():
        if axis in splits.places:
            if splits.places[axis] != place:
                return None
            continue
        merged = space.table.merged(splits, axis, more)
        if merged is None:
            return None
        splits = merged
    return splits
