"""Ops at the borders of loops (`autopar.ir.loops`): iterations are a factor that isn't split."""

from __future__ import annotations

from autopar.ir.loops import CARRY, CAT, LAST, STACK, SUM, TAKE
from autopar.ir.ops.elementwise.pointwise import pointwise
from autopar.ir.ops.table import FIRST, MOVED, Table, factors, whole
from autopar.ir.rules.rule import Dims, OpCall, Rule, RuleError, build_rule

_ITERATION = "t"


def _of_parts(dims: Dims) -> Dims:
    """Returns the factors of what consists of parts with these."""
    if not dims:
        raise RuleError("a scalar has no parts")
    (first, *rest) = dims
    return ((_ITERATION, *first), *rest)


def take(call: OpCall) -> Rule | None:
    """autopar.loop_take: `(t b) ... -> b ...`."""
    dims = factors("i", len(call.results[0].shape))
    whole = [_ITERATION]
    return build_rule(call, [_of_parts(dims)], [dims], whole=whole, linear=MOVED, work=0)


def put_together(call: OpCall) -> Rule | None:
    """autopar.loop_cat: `b ... -> (t b) ...`."""
    dims = factors("i", len(call.operands[0].shape))
    whole = [_ITERATION]
    return build_rule(call, [dims], [_of_parts(dims)], whole=whole, linear=MOVED, work=0)


def stacked(call: OpCall) -> Rule | None:
    """autopar.loop_stack: `... -> t ...`."""
    dims = factors("i", len(call.operands[0].shape))
    results = ((_ITERATION,), *dims)
    return build_rule(call, [dims], [results], whole=[_ITERATION], linear=MOVED, work=0)


RULES: Table = {
    TAKE: take,
    SUM: pointwise(*FIRST),
    CAT: put_together,
    STACK: stacked,
    # Every iteration gets it as the one before leaves it: complete, on every process.
    CARRY: whole,
    LAST: whole,
}
