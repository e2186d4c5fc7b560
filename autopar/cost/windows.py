"""From the blocks of an operand to the windows of it that an op reads.

An op that is split along a factor reads its operand through a window: the rank's own block and a
halo around it. The halo comes from its neighbours in one `comm.redistribute`; where a rank holds
all that it reads anyway, the window is cut out of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from autopar.cost.evaluation import Evaluator
from autopar.ir import emitted
from autopar.ir.collectives import REDISTRIBUTE
from autopar.ir.dims import local_dim_size, whole
from autopar.ir.expr.at_rank import shape_at
from autopar.ir.expr.expression import IntExpr
from autopar.ir.layout import Layout
from autopar.ir.program import Arg, Op, OpDist, Ref, Value
from autopar.ir.rules.distribution import (
    consumed,
    factor_layout,
    factor_start,
    window_axes,
    window_extent,
    windows,
)
from autopar.ir.rules.redistribution import Exchange
from autopar.ir.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class WindowStep:
    """An op on the way to a window. Its operand `self` is the result of the step before.

    Attributes:
        kind: The op.
        args: Its arguments but `self`.
        shape: Of its result on a rank.
    """

    kind: str
    args: tuple[tuple[str, Arg], ...]
    shape: tuple[IntExpr, ...]


@dataclass(frozen=True, slots=True)
class WindowWay:
    """One way to the windows of an operand.

    Attributes:
        layout: The layout from which it leads on.
        steps: The ops.
    """

    layout: Layout
    steps: tuple[WindowStep, ...]

    def local_seconds(self, dtype: str, evaluator: Evaluator) -> float:
        """Returns the predicted seconds of the ops on a rank.

        Args:
            dtype: Of the operand.
            evaluator: Prices single ops.
        """
        coords = evaluator.coords
        held, total = Value("x", dtype, shape_at(self.layout.local_shape, coords)), 0.0
        for step in self.steps:
            made = Value("y", dtype, shape_at(step.shape, coords))
            op = Op(step.kind, (("self", Ref("x")), *step.args), ("y",))
            total += evaluator.cost(op, {"x": held, "y": made}).seconds
            held = replace(made, name="x")
        return total

    @property
    def window_shape(self) -> tuple[IntExpr, ...]:
        """The shape of the window on a rank."""
        return self.steps[-1].shape


def window_ways(rule: Rule, dist: OpDist, operand: int) -> tuple[WindowWay, ...]:
    """Returns the ways to the windows of an operand: from its blocks first, then from more of it.

    Empty if it isn't read through windows, or they are the blocks.
    """
    cuttable = windows(rule, dist, operand)
    cut = [factor for factor in cuttable if window_axes(rule, dist, factor)]
    single = cuttable.keys() - cut
    choices = [
        single.union(group) for size in range(len(cut) + 1) for group in combinations(cut, size)
    ]
    return tuple(_way(rule, dist, operand, complete) for complete in choices) if cuttable else ()


def _way(rule: Rule, dist: OpDist, operand: int, complete: Collection[str]) -> WindowWay:
    lowering = _Lowering(rule, dist, operand, complete)
    return WindowWay(consumed(rule, dist, operand, complete), tuple(lowering.steps()))


class _Lowering:
    """The steps of one way. A factor within a dimension is exposed by a view."""

    def __init__(self, rule: Rule, dist: OpDist, operand: int, complete: Collection[str]) -> None:
        self.rule, self.dist, self.complete = rule, dist, complete
        self.dims = rule.operands[operand]
        self.found = windows(rule, dist, operand)
        self.sizes = {factor: self._held(factor) for dim in self.dims for factor in dim}

    def _held(self, factor: str) -> IntExpr:
        rule, dist = self.rule, self.dist
        if factor in self.complete:
            return local_dim_size(whole(rule.sizes[factor]), dist.mesh)
        return local_dim_size(factor_layout(rule, dist, factor), dist.mesh)

    def steps(self) -> Iterator[WindowStep]:
        """Yields the ops."""
        for number, dim in enumerate(self.dims):
            for position, factor in enumerate(dim):
                if factor not in self.found:
                    continue
                split = (dim[:position], (factor,), dim[position + 1 :])
                parts = tuple(part for part in split if part)
                exposed = (*self.dims[:number], *parts, *self.dims[number + 1 :])
                if len(parts) > 1:
                    yield self._view(exposed)
                low, self.sizes[factor] = window_extent(self.rule, self.dist, factor)
                yield self._window(factor, number + (position > 0), low, self._shape(exposed))
                if len(parts) > 1:
                    yield self._view(self.dims)

    def _window(
        self, factor: str, dim: int, low: IntExpr, shape: tuple[IntExpr, ...]
    ) -> WindowStep:
        way: Exchange = self.found[factor]
        is_complete = factor in self.complete
        if not is_complete and not way.is_local:
            axes = window_axes(self.rule, self.dist, factor)
            args = (("dim", dim), *way.args, ("axes", axes))
            return WindowStep(REDISTRIBUTE, args, shape)
        if not is_complete:
            low = low - factor_start(self.rule, self.dist, factor)
        high = low + self.sizes[factor]
        if way.is_within if is_complete else way.is_within_block:
            return WindowStep(*emitted.slice_(low, high, dim or None), shape)
        fill = self.rule.windows[factor].fill
        return WindowStep(*emitted.window(dim, low, high, fill), shape)

    def _view(self, dims: tuple[tuple[str, ...], ...]) -> WindowStep:
        shape = self._shape(dims)
        return WindowStep(*emitted.view(shape), shape)

    def _shape(self, dims: tuple[tuple[str, ...], ...]) -> tuple[IntExpr, ...]:
        sizes: list[IntExpr] = []
        for dim in dims:
            size: IntExpr = 1
            for factor in dim:
                size = size * self.sizes[factor]
            sizes.append(size)
        return tuple(sizes)
