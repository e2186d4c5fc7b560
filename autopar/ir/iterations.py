"""Iterations: of which one an op is part, once a loop is unrolled; its plan says so.

plan(iteration="head 3")           of the fourth iteration of the loop `head`
plan(iteration="rows 1, head 3")   of that in the second one of `rows`
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from autopar.ir.program import Op

ITERATION = "iteration"
"""The plan field."""

_THEN = ", "


class Iteration(NamedTuple):
    """An iteration of a loop.

    Attributes:
        loop: The name of the loop.
        number: How many of its iterations are before this one.
    """

    loop: str
    number: int


def iteration_of(op: Op) -> Iteration | None:
    """Returns the iteration of the outermost loop of which an op is part; None if there is none."""
    text = dict(op.plan).get(ITERATION)
    if text is None:
        return None
    loop, _, number = text.partition(_THEN)[0].partition(" ")
    return Iteration(loop, int(number))


def within(op: Op, iteration: Iteration) -> Op:
    """Returns an op as part of an iteration, around those of which it is part already."""
    inner = dict(op.plan).get(ITERATION)
    text = f"{iteration.loop} {iteration.number}"
    return _with(op, text if inner is None else f"{text}{_THEN}{inner}")


def without_outermost(op: Op) -> Op:
    """Returns an op that is part of no iteration of its outermost loop."""
    return _with(op, dict(op.plan).get(ITERATION, "").partition(_THEN)[2])


def _with(op: Op, text: str) -> Op:
    rest = tuple(entry for entry in op.plan if entry[0] != ITERATION)
    return replace(op, plan=(*rest, (ITERATION, text)) if text else rest)
