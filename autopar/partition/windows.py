"""From the blocks of an operand to the windows of it that an op reads.

An op that is split along a factor reads its operand through a window: the rank's own block and a
halo around it. The halo comes from its neighbours in one `comm.redistribute`; where a rank holds
all of the dimension anyway, the window is cut out of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import combinations

from autopar.cost.collectives import CommunicationModel
from autopar.cost.halo import exchange_seconds, halo_bytes
from autopar.ir.distribution import (
    consumed,
    factor_layout,
    window_axes,
    window_extent,
    windows,
)
from autopar.ir.expr import IntExpr, add, evaluate, multiply
from autopar.ir.layout import Layout, local_dim_size, whole
from autopar.ir.program import Arg, OpDist
from autopar.ir.rule import Rule
from autopar.ir.window import Redistribution


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

    def seconds(self, itemsize: int, model: CommunicationModel) -> float:
        """Returns the predicted seconds of its communication."""
        origin = dict.fromkeys(self.layout.mesh.dim_names, 0)
        total = 0.0
        for step in self.steps:
            axes = dict(step.args).get("axes")
            if isinstance(axes, tuple):
                shape = [evaluate(size, origin) for size in step.shape]
                nbytes = halo_bytes(dict(step.args), shape, itemsize)
                total += exchange_seconds(nbytes, [str(axis) for axis in axes], model)
        return total


def window_ways(rule: Rule, dist: OpDist, operand: int) -> tuple[WindowWay, ...]:
    """Returns the ways to the windows of an operand: from its blocks first, then from more of it.

    Empty if it isn't read through windows, or they are the blocks.
    """
    found = windows(rule, dist, operand)
    cut = [factor for factor in found if window_axes(rule, dist, factor)]
    single = found.keys() - cut
    choices = [
        single.union(group) for size in range(len(cut) + 1) for group in combinations(cut, size)
    ]
    return tuple(_way(rule, dist, operand, complete) for complete in choices) if found else ()


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
        for at, dim in enumerate(self.dims):
            for position, factor in enumerate(dim):
                if factor not in self.found:
                    continue
                split = (dim[:position], (factor,), dim[position + 1 :])
                parts = tuple(part for part in split if part)
                exposed = (*self.dims[:at], *parts, *self.dims[at + 1 :])
                if len(parts) > 1:
                    yield self._view(exposed)
                low, self.sizes[factor] = window_extent(self.rule, self.dist, factor)
                yield self._window(factor, at + (position > 0), low, self._shape(exposed))
                if len(parts) > 1:
                    yield self._view(self.dims)

    def _window(
        self, factor: str, dim: int, low: IntExpr, shape: tuple[IntExpr, ...]
    ) -> WindowStep:
        way: Redistribution = self.found[factor]
        window = self.rule.windows[factor]
        if factor in self.complete:
            high = add(low, self.sizes[factor])
            args = (("dim", dim), ("low", low), ("high", high), ("fill", window.fill))
            return WindowStep("autopar.window", args, shape)
        axes = window_axes(self.rule, self.dist, factor)
        return WindowStep("comm.redistribute", (("dim", dim), *way.args, ("axes", axes)), shape)

    def _view(self, dims: tuple[tuple[str, ...], ...]) -> WindowStep:
        shape = self._shape(dims)
        return WindowStep("aten.view.default", (("size", shape),), shape)

    def _shape(self, dims: tuple[tuple[str, ...], ...]) -> tuple[IntExpr, ...]:
        sizes: list[IntExpr] = []
        for dim in dims:
            size: IntExpr = 1
            for factor in dim:
                size = multiply(size, self.sizes[factor])
            sizes.append(size)
        return tuple(sizes)
