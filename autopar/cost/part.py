"""Part: the seconds of what a rank computes of an op, as the evaluator finds them there.

What a rank reads through windows is more than its block, and a part of some ops is another op. So
the op is written down as the rank runs it, and priced like that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.cost.evaluation import Evaluator
from autopar.cost.windows import WindowWay
from autopar.ir.expr.at_rank import shape_at
from autopar.ir.program import Op, OpDist, Value
from autopar.ir.rules.distribution import consumed, produced, rank_call
from autopar.ir.rules.rule import Rule


def part_seconds(
    op: Op,
    values: Mapping[str, Value],
    rule: Rule,
    dist: OpDist,
    ways: Sequence[tuple[WindowWay, ...]],
    evaluator: Evaluator,
) -> float:
    """Returns the seconds of an op on a rank, without what brings its operands there.

    Args:
        op: The op of the serial program.
        values: The values around it.
        rule: Its rule.
        dist: The choice, not of a body.
        ways: Per operand the ways to the windows through which it is read, if it is.
        evaluator: Prices single ops.
    """
    coords = evaluator.coords
    shapes = [
        windows[0].window_shape if windows else consumed(rule, dist, position).local_shape
        for position, windows in enumerate(ways)
    ]
    shapes += [produced(rule, dist, position).local_shape for position in range(len(op.results))]
    around = [
        Value(f"v{number}", values[name].dtype, shape_at(shape, coords))
        for number, (name, shape) in enumerate(
            zip((*op.operands, *op.results), shapes, strict=True)
        )
    ]
    names = [value.name for value in around]
    read, made = names[: len(op.operands)], names[len(op.operands) :]
    kind, args = rank_call(rule, dist, op.kind)
    local = Op(kind, op.with_operands(read).with_args(args).args, tuple(made), loops=op.loops)
    return evaluator.cost(local, {value.name: value for value in around}).seconds
