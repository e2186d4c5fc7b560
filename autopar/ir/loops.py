"""Loops: ops of a program that run once for each iteration, on a part of what they would read.

Time is like a mesh axis, with iterations in the place of processes. An op with `times=8` runs eight
times, on the parts of an axis of eight. What is split over it, is there in parts one after another:

    %x: f32[32, 64]                                      the batch
    %x.part: f32[4, 64] = autopar.loop_take(%x, trip=8)  rows 4 t to 4 t + 4 of it, in iteration t
    %g: f32[64, 64] = ... times=8                        a gradient of these rows
    %total: f32[64, 64] = autopar.loop_sum(%g) times=8   that of all rows

Ops in a loop read its parts, what the iteration before has left, what they make of these, and
whatever is there before. What others read of a loop are its sums, what it puts together, and what
the last iteration leaves: those are complete behind it.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.program import Op

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

LEAVES = (SUM, CAT, STACK, LAST)
"""The ops whose results are there behind the last iteration."""


def behind(op: Op) -> Op:
    """Returns an op as the one that has its results: what a loop leaves is there behind it."""
    return replace(op, times=1) if op.times > 1 and op.kind in LEAVES else op


def executions(op: Op) -> int:
    """Returns how often an op is computed: a sum begins with the first part, which isn't added."""
    if op.kind == SUM:
        return op.times - 1
    return 1 if op.kind in LEAVES else op.times
