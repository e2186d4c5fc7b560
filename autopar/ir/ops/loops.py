"""Loops: ops of a program that run once for each iteration, on a part of what they would read.

Time is like a mesh axis, with iterations in the place of processes. An op in the loop `head=8` runs
eight times, on the parts of an axis of eight. What is split over it, is there in parts one after
another:

    %x: f32[32, 64]
    %x.part: f32[4, 64] = autopar.loop_take(%x, trip=8, loop="head")    rows 4 t to 4 t + 4 of it
    %g: f32[64, 64] = ... loops(head=8)                                 a gradient of these rows
    %total: f32[64, 64] = autopar.loop_reduce(%g, monoid="sum") loops(head=8)    of all

Ops in a loop read its parts, what the iteration before has left, what they make of these, and
whatever is there before; weights among it may be held for them, in front of the loop. What others
read of a loop are its reductions, as sums and maxima, what it puts together, and what the last
iteration leaves: those are complete behind it. To their rules an iteration is a factor that isn't
split. Loops nest: `loops(microbatch=4, head=8)` runs 32 times. What takes a part, or gets what is
carried, stands in front of its loop, and so in the loops around that; what leaves a loop stands in
it.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.ops.elementwise.pointwise import pointwise
from autopar.ir.ops.table import FIRST, MOVED, Table, factors, pending, whole
from autopar.ir.program import MICROBATCH, Loops, Op
from autopar.ir.rules.rule import Dims, OpCall, Rule, RuleError, build_rule

TAKE = "autopar.loop_take"
"""The part of an operand, along a dimension (`dim`), of which the iteration (of `loop`) is the one
in turn; of the first dimension, and the loop over microbatches, where nothing is said."""

PARTS = "autopar.loop_parts"
"""The parts of an operand along its first dimension, as many as iterations (`trip`), along a new
one: a view for what computes all of them at once, as a loop would split each."""

REDUCE = "autopar.loop_reduce"
"""The reduction (`monoid`: a sum, a maximum, ...) of what all iterations have of a value."""

CAT = "autopar.loop_cat"
"""What all iterations have of a value, behind one another along a dimension (`dim`)."""

STACK = "autopar.loop_stack"
"""What all iterations have of a value, along a new first dimension."""

CARRY = "autopar.loop_carry"
"""What the iteration before (of `loop`) leaves; of the first one, the operand."""

LAST = "autopar.loop_last"
"""What an iteration leaves for the next one, `self`, of what it got, `carried`."""

SEED = "autopar.loop_seed"
"""A seed that is another one in each iteration; in the first one, the operand."""

HOLD = "autopar.loop_hold"
"""What all iterations (of `loop`) read, the operand, as it is brought to them in front of it."""

ENTERS = (TAKE, CARRY, SEED)
"""The ops whose results are in a loop in front of which they stand."""

LEAVES = (REDUCE, CAT, STACK, LAST)
"""The ops whose results are there behind the last iteration."""


def behind(op: Op) -> Op:
    """Returns an op as the one that has its results: what a loop leaves is there behind it."""
    return replace(op, loops=op.loops[:-1]) if op.kind in LEAVES else op


def entered(op: Op) -> str:
    """Returns the loop in which an op's results are, though it stands in front of it."""
    return str(op.arg("loop", MICROBATCH)) if op.kind in ENTERS else ""


def is_inside(op: Op, loop: str) -> bool:
    """Returns whether an op has something else to do in each iteration of a loop."""
    return entered(op) == loop or any(name == loop for name, _ in op.loops)


def depth(op: Op | None) -> int:
    """Returns in how many loops what an op makes isn't always the same; what is given is."""
    return 0 if op is None else len(behind(op).loops) + (op.kind in ENTERS)


def executions(op: Op) -> int:
    """Returns how often an op is computed: a reduction begins with the first part."""
    left = behind(op).times
    return op.times - left if op.kind == REDUCE else left


def microbatches(op: Op) -> int:
    """Returns over how many microbatches the loop around an op runs."""
    return dict(op.loops).get(MICROBATCH, 1)


def only_microbatches(loops: Loops) -> bool:
    """Returns whether some loops are the one over microbatches."""
    return len(loops) == 1 and loops[0][0] == MICROBATCH


_ITERATION = "t"


def _of_parts(call: OpCall, dims: Dims) -> Dims:
    """Returns the factors of what consists of parts with these."""
    if not dims:
        raise RuleError("a scalar has no parts")
    at = call.integer("dim", 0)
    return tuple((_ITERATION, *dim) if at == each else dim for each, dim in enumerate(dims))


def take(call: OpCall) -> Rule | None:
    """autopar.loop_take: `(t b) ... -> b ...`."""
    dims = factors("i", len(call.results[0].shape))
    whole = [_ITERATION]
    return build_rule(call, [_of_parts(call, dims)], [dims], whole=whole, linear=MOVED, work=0)


def parts(call: OpCall) -> Rule | None:
    """autopar.loop_parts: `(t b) ... -> t b ...`."""
    dims = factors("i", len(call.operands[0].shape))
    whole, results = [_ITERATION], ((_ITERATION,), *dims)
    return build_rule(call, [_of_parts(call, dims)], [results], whole=whole, linear=MOVED, work=0)


def moved(call: OpCall) -> Rule | None:
    """autopar.loop_hold: `... -> ...`."""
    dims = factors("i", len(call.operands[0].shape))
    return build_rule(call, [dims], [dims], linear=MOVED, work=0)


def put_together(call: OpCall) -> Rule | None:
    """autopar.loop_cat: `b ... -> (t b) ...`."""
    dims = factors("i", len(call.operands[0].shape))
    whole = [_ITERATION]
    return build_rule(call, [dims], [_of_parts(call, dims)], whole=whole, linear=MOVED, work=0)


def stacked(call: OpCall) -> Rule | None:
    """autopar.loop_stack: `... -> t ...`."""
    dims = factors("i", len(call.operands[0].shape))
    results = ((_ITERATION,), *dims)
    return build_rule(call, [dims], [results], whole=[_ITERATION], linear=MOVED, work=0)


def reduced(call: OpCall) -> Rule | None:
    """autopar.loop_reduce: a reduction over processes of the same kind may come behind it."""
    return pointwise(pending(0, monoids=(str(call.args["monoid"]),)))(call)


RULES: Table = {
    TAKE: take,
    PARTS: parts,
    REDUCE: reduced,
    CAT: put_together,
    STACK: stacked,
    # Every iteration gets it as the one before leaves it: complete, on every process.
    CARRY: whole,
    LAST: whole,
    SEED: pointwise(*FIRST),
    HOLD: moved,
}
