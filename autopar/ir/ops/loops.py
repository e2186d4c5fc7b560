"""Loops: ops of a program that run once for each iteration, on a part of what they would read.

Time is like a mesh axis, with iterations in the place of processes. An op with `times=8` runs eight
times, on the parts of an axis of eight. What is split over it, is there in parts one after another:

    %x: f32[32, 64]                                      the batch
    %x.part: f32[4, 64] = autopar.loop_take(%x, trip=8)  rows 4 t to 4 t + 4 of it, in iteration t
    %g: f32[64, 64] = ... times=8                        a gradient of these rows
    %total: f32[64, 64] = autopar.loop_sum(%g) times=8   that of all rows

Ops in a loop read its parts, what the iteration before has left, what they make of these, and
whatever is there before. What others read of a loop are its sums, what it puts together, and what
the last iteration leaves: those are complete behind it. To their rules an iteration is a factor
that isn't split.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.ops.elementwise.pointwise import pointwise
from autopar.ir.ops.table import FIRST, MOVED, Table, factors, whole
from autopar.ir.program import Op
from autopar.ir.rules.rule import Dims, OpCall, Rule, RuleError, build_rule

TAKE = "autopar.loop_take"
"""The part of an operand, along its first dimension, of which the iteration is the one in turn."""

SUM = "autopar.loop_sum"
"""The sum of what all iterations have of a value."""

CAT = "autopar.loop_cat"
"""What all iterations have of a value, behind one another along its first dimension."""

STACK = "autopar.loop_stack"
"""What all iterations have of a value, along a new first dimension."""

CARRY = "autopar.loop_carry"
"""What the iteration before leaves; of the first one, the operand."""

LAST = "autopar.loop_last"
"""What an iteration leaves for the next one, `self`, of what it got, `carried`."""

SEED = "autopar.loop_seed"
"""A seed that is another one in each iteration; in the first one, the operand."""

LEAVES = (SUM, CAT, STACK, LAST)
"""The ops whose results are there behind the last iteration."""


def behind(op: Op) -> Op:
    """Returns an op as the one that has its results: what a loop leaves is there behind it."""
    return replace(op, times=1) if op.times > 1 and op.kind in LEAVES else op


def is_inside(op: Op) -> bool:
    """Returns whether an op has something else to do in each iteration."""
    return op.times > 1 or op.kind in (TAKE, CARRY)


def lasts(op: Op | None) -> bool:
    """Returns whether what an op makes is the same in all iterations; what is given is, too."""
    return op is None or op.kind in LEAVES or not is_inside(op)


def executions(op: Op) -> int:
    """Returns how often an op is computed: a sum begins with the first part, which isn't added."""
    if op.kind == SUM:
        return op.times - 1
    return 1 if op.kind in LEAVES else op.times


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
    SEED: pointwise(*FIRST),
}
