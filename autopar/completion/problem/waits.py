"""Waits: whether processes that compute parts of an op by a body have to hear of one another.

The shares of a softmax along a dimension need the sum over it: whoever has a part of the dimension
waits for all others, whatever becomes of the body's ops. That a sum is pending until the results
may be is no such case, for then the results may be left pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from autopar.completion.problem.body import body_ops
from autopar.completion.problem.space import Space
from autopar.cost.reshard.bound import hearing_seconds
from autopar.ir.dims import DimLayout, block_size, dim_axes
from autopar.ir.expr.expression import planned
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Op, OpDist, Value
from autopar.ir.rules.rule import SAME, Rule


class _Calls(Protocol):
    def call_of(self, op: Op, values: Mapping[str, Value], /) -> Called: ...


class Called(Protocol):
    """What is asked of a call, see `op_strategies.Call`."""

    example: tuple[Op, Mapping[str, Value]]
    rule: Rule
    space: Space

    @property
    def calls(self) -> _Calls:
        """The table it is in."""

    def rows(self, body: str, monoid: str = "sum", /) -> list[tuple[int, ...]]:
        """Returns which operands may be pending together."""


class Waits:
    """What processes wait for at least that compute an op by its bodies.

    Args:
        call: The op.
    """

    def __init__(self, call: Called) -> None:
        self._call = call
        self._known: dict[tuple[str, str], bool] = {}

    def seconds(self, dist: OpDist) -> float:
        """Returns seconds that pass at least until processes have heard of others' parts."""
        space, longest = self._call.space, 0.0
        for factor, dim in dist.factors:
            key = dist.body, factor
            if key not in self._known:
                self._known[key] = must_wait(self._call, *key)
            if self._known[key]:
                blocks, axes = _blocks(dim, space.mesh), dim_axes(dim)
                seconds = hearing_seconds(space.planner.model, space.axes, axes, blocks)
                longest = max(longest, seconds)
        return longest


def _blocks(dim: DimLayout, mesh: ProcessMesh) -> int:
    """Returns into how many blocks a dimension is cut that aren't empty, at the planned sizes."""
    blocks = 1
    for sub in dim:
        size = planned(sub.size)
        if sub.axes and size:
            blocks *= -(-size // block_size(size, mesh.axes_size(sub.axes)))
    return blocks


def must_wait(call: Called, body: str, factor: str) -> bool:
    """Whether parts of an op along a factor can't be computed by a body without communication.

    Args:
        call: The op.
        body: The name of the body.
        factor: A factor of the op that the body may split.

    Returns:
        False also where it isn't sure.
    """
    op, around = call.example
    ops, values = body_ops(call.rule, op, OpDist(call.space.mesh, body=body), around)
    parts = _Parts()
    if not parts.begin(op, call, body, factor):
        return False
    for each in ops:
        waits = parts.follow(each, call.calls.call_of(each, values))
        if waits is not None:
            return waits
    return False


class _Parts:
    """The values of a body of which a process has parts, if nothing is communicated."""

    def __init__(self) -> None:
        self.along: dict[str, int] = {}
        """By name, the dimension along which it is a part."""
        self.due: dict[str, str] = {}
        """By name, how it is yet to be reduced."""

    def begin(self, op: Op, call: Called, body: str, factor: str) -> bool:
        """Notes the op's operands; returns whether it is sure what is there of each."""
        rule = call.rule.under(body)
        for name, dims in zip(op.operands, rule.operands, strict=True):
            for number, factors in enumerate(dims):
                if factors == (factor,):
                    self.along[name] = number
                elif factor in factors:
                    return False
        return factor not in rule.indexed and not rule.windows

    def follow(self, op: Op, call: Called) -> bool | None:
        """Notes what is there of an op's results; returns whether parts wait, if that is known."""
        split = {name: self.along[name] for name in op.operands if name in self.along}
        owed = {at: self.due[name] for at, name in enumerate(op.operands) if name in self.due}
        if owed:
            if split or not _flows(call, owed):
                return True
            self.due.update(dict.fromkeys(op.results, next(iter(owed.values()))))
        for position, name in enumerate(op.operands):
            if name in split:
                factors = call.rule.operands[position][split[name]]
                if len(factors) != 1 or factors[0] in call.rule.indexed or call.rule.windows:
                    return False
                waits = self._split(op, call, factors[0])
                if waits is not None:
                    return waits
        return None

    def _split(self, op: Op, call: Called, factor: str) -> bool | None:
        """Notes what is there of an op's results that is split along a factor."""
        rule = call.rule
        if factor not in rule.splittable:
            return all(
                must_wait(call, body.name, factor)
                for body in rule.bodies
                if factor in body.rule.splittable
            )
        for position, (name, dims) in enumerate(zip(op.results, rule.results, strict=True)):
            if (factor,) in dims:
                self.along[name] = dims.index((factor,))
            elif any(factor in factors for factors in dims):
                return False
            elif (monoid := rule.reduce.get((factor, position), SAME)) != SAME:
                self.due[name] = monoid
        return None


def _flows(call: Called, owed: dict[int, str]) -> bool:
    """Whether operands that are yet to be reduced may stay so behind an op.

    Others that have to be pending with them, as what is added to a sum, are easily made so.
    """
    monoid, *others = set(owed.values())
    if others:
        return False
    bodies = ("", *(body.name for body in call.rule.bodies))
    return any(owed.keys() <= set(row) for body in bodies for row in call.rows(body, monoid))
