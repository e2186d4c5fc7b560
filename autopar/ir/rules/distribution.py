"""What follows from a rule and a choice: consumed and produced layouts, local arguments, flops.

A choice (`OpDist`) assigns mesh axes to the factors of an op's rule. Partition, cost, completion
and the verifier all derive the layouts around the op with the functions below.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from autopar.ir.dims import (
    DimLayout,
    SubDim,
    block_size,
    dim_axes,
    local_dim_size,
    local_extent,
    whole,
)
from autopar.ir.expr.expression import IntExpr, maximum, planned
from autopar.ir.expr.facts import can_exceed
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Arg, OpDist
from autopar.ir.rules.local_arg import Grid, IfSplit, LocalArg, Size, Sizes
from autopar.ir.rules.redistribution import Exchange, exchange
from autopar.ir.rules.rule import SAME, Dims, Rule


def factor_layout(rule: Rule, dist: OpDist, factor: str) -> DimLayout:
    """Returns the layout of a factor; whole if the choice doesn't name it.

    A factor that is read through a window is split like the one it is a window of, unless it is a
    single element.
    """
    chosen = dist.factor(factor)
    if chosen is not None:
        return chosen
    return (SubDim(rule.sizes[factor], window_axes(rule, dist, factor)),)


def window_axes(rule: Rule, dist: OpDist, factor: str) -> tuple[str, ...]:
    """Returns the mesh axes over which a factor that is read through a window lies in blocks."""
    window = rule.windows.get(factor)
    return split_axes(dist, window.of) if window and can_exceed(rule.sizes[factor], 1) else ()


def split_axes(dist: OpDist, factor: str) -> tuple[str, ...]:
    """Returns the mesh axes, of more than one process, that split a factor."""
    axes = dim_axes(dist.factor(factor) or ())
    return axes if dist.mesh.axes_size(axes) > 1 else ()


def tensor_dims(
    rule: Rule, dist: OpDist, dims: Dims, complete: Collection[str] = ()
) -> tuple[DimLayout, ...]:
    """Returns the dimensions of a tensor that these factors index, not normalized.

    The factors in `complete` are whole, whatever the choice says.
    """

    def layout(factor: str) -> DimLayout:
        if factor in complete:
            return whole(rule.sizes[factor])
        return factor_layout(rule, dist, factor)

    return tuple(
        tuple(sub for factor in dim for sub in layout(factor)) or (SubDim(1),) for dim in dims
    )


def consumed(rule: Rule, dist: OpDist, operand: int, complete: Collection[str] = ()) -> Layout:
    """Returns the layout in which the op needs an operand, given by position.

    Factors that are read through a window lie in blocks, from which `windows` leads on, or are
    whole if they are in `complete`.
    """
    rule = rule.under(dist.body)
    pending = {p.axis: p.monoid for p in dist.pending if operand in p.operands}
    pending |= pending_once(rule, dist, operand)
    layout = Layout(dist.mesh, tensor_dims(rule, dist, rule.operands[operand], complete))
    return layout.with_partial(pending).normalized()


def pending_once(rule: Rule, dist: OpDist, operand: int) -> dict[str, str]:
    """Returns the axes over which an operand must be pending to count once, and the monoids."""
    return {
        axis: rule.reduce[factor, 0]
        for factor, operands in rule.once.items()
        if operand in operands
        for axis in dim_axes(dist.factor(factor) or ())
    }


def windows(rule: Rule, dist: OpDist, operand: int) -> dict[str, Exchange]:
    """Returns how the blocks of an operand's factors become the windows that the op reads.

    Factors whose blocks are the windows are left out.
    """
    rule = rule.under(dist.body)
    found: dict[str, Exchange] = {}
    for factor in (name for dim in rule.operands[operand] for name in dim):
        window = rule.windows.get(factor)
        axes = split_axes(dist, window.of) if window else ()
        if window and axes:
            held, read = rule.sizes[factor], rule.sizes[window.of]
            way = exchange(held, read, dist.mesh.axes_size(axes), window)
            if not way.is_identity:
                found[factor] = way
    return found


def window_extent(rule: Rule, dist: OpDist, factor: str) -> tuple[IntExpr, IntExpr]:
    """Returns (first index, number of elements) of a rank's window of a factor."""
    rule = rule.under(dist.body)
    window = rule.windows[factor]
    (sub,) = factor_layout(rule, dist, window.of)
    return window.extent(*local_extent(sub, dist.mesh), rule.sizes[factor])


def produced(rule: Rule, dist: OpDist, result: int) -> Layout:
    """Returns the layout in which the op leaves a result, given by position."""
    rule = rule.under(dist.body)
    dims = rule.results[result]
    present = {name for dim in dims for name in dim}
    pending = {p.axis: p.monoid for p in dist.pending}
    for factor, chosen in dist.factors:
        axes = dim_axes(chosen)
        if factor not in present and axes:
            monoid = rule.reduce[factor, result]
            if monoid != SAME:
                pending.update((axis, monoid) for axis in axes)
    return Layout(dist.mesh, tensor_dims(rule, dist, dims)).with_partial(pending).normalized()


def replicated(mesh: ProcessMesh, shape: tuple[IntExpr, ...]) -> Layout:
    """Returns the layout that an op without a rule consumes and produces."""
    return Layout.replicated(mesh, shape).normalized()


def local_args(rule: Rule, dist: OpDist) -> dict[str, Arg]:
    """Returns the arguments that a rank passes instead of the serial ones."""
    rule = rule.under(dist.body)
    return {name: _local_arg(rule, dist, arg) for name, arg in rule.local.items()}


def shard_call(rule: Rule, dist: OpDist) -> tuple[str, dict[str, Arg]] | None:
    """Returns the op, and its further arguments, that computes a shard of indexed factors.

    None if the choice splits no such factor, and none whose elements have numbers: then the op
    itself computes its part.
    """
    rule = rule.under(dist.body)
    shards = {**rule.indexed, **rule.numbered}
    split = {f: shards[f] for f, dim in dist.factors if f in shards and dim_axes(dim)}
    args: dict[str, Arg] = {}
    for factor, shard in split.items():
        args |= {**shard.args, shard.start: shard.base + factor_start(rule, dist, factor)}
    return (next(iter(split.values())).kind, args) if split else None


def rank_call(rule: Rule, dist: OpDist, kind: str) -> tuple[str, dict[str, Arg]]:
    """Returns the op that a rank runs for one of a kind, and the arguments that differ."""
    args = dict(local_args(rule, dist))
    shard = shard_call(rule, dist)
    return (shard[0], {**args, **shard[1]}) if shard is not None else (kind, args)


def factor_start(rule: Rule, dist: OpDist, factor: str) -> IntExpr:
    """Returns the first index of a rank's block of a factor with one sub-dimension."""
    (sub,) = factor_layout(rule, dist, factor)
    return local_extent(sub, dist.mesh)[0]


def local_points(rule: Rule, dist: OpDist) -> int:
    """Returns the size of the iteration space of the rank with the largest part.

    Factors of size 0 don't count: some ops have an unused result of shape [0].
    """
    rule = rule.under(dist.body)
    points = 1
    for factor, size in rule.sizes.items():
        if factor in rule.unscaled:
            continue
        # A window's elements are counted by the factor that it is a window of.
        for sub in dist.factor(factor) or whole(size):
            points *= max(1, planned(block_size(sub.size, dist.mesh.axes_size(sub.axes))))
    return points


def serial_points(rule: Rule) -> int:
    """Returns the size of the op's whole iteration space, factors of size 0 left out."""
    sizes = (size for factor, size in rule.sizes.items() if factor not in rule.unscaled)
    return math.prod(max(1, planned(size)) for size in sizes)


def _local_arg(rule: Rule, dist: OpDist, arg: int | tuple[str, ...] | LocalArg) -> Arg:
    if isinstance(arg, int):
        return arg
    if isinstance(arg, tuple):
        return _product(rule, dist, arg)
    if isinstance(arg, Sizes):
        return tuple(_local_arg(rule, dist, entry) for entry in arg.entries)
    if isinstance(arg, IfSplit):
        chosen = arg.then if split_axes(dist, arg.factor) else arg.otherwise
        return _local_arg(rule, dist, chosen)
    if isinstance(arg, Size):
        return _product(rule, dist, arg.factors) * arg.scale
    if isinstance(arg, Grid):
        return _grid(rule, dist, arg)
    (sub,) = factor_layout(rule, dist, arg.factor)
    start, length = local_extent(sub, dist.mesh)
    index = start + length if arg.end else start
    if arg.minus:
        index = index - factor_start(rule, dist, arg.minus)
    index = index * arg.scale + arg.base
    if arg.least is not None:
        index = maximum(index, arg.least)
    return index * _product(rule, dist, arg.unit) if arg.unit else index


def _grid(rule: Rule, dist: OpDist, grid: Grid) -> Arg:
    entries: list[Arg] = []
    stride: IntExpr = 1
    names = [factor for dim in grid.dims for factor in dim]
    for at, factor in reversed([*enumerate(names)]):
        begin: IntExpr = 0
        if grid.base:
            begin, stride = grid.base[at]
        for sub in reversed(factor_layout(rule, dist, factor)):
            start, length = local_extent(sub, dist.mesh)
            entries.append((start + begin, length, stride))
            begin, stride = 0, stride * sub.size
    return tuple(reversed(entries))


def _product(rule: Rule, dist: OpDist, factors: tuple[str, ...]) -> IntExpr:
    size: IntExpr = 1
    for factor in factors:
        size = size * local_dim_size(factor_layout(rule, dist, factor), dist.mesh)
    return size


def split_factors(dist: OpDist) -> Mapping[str, tuple[str, ...]]:
    """Returns the mesh axes of each factor that is split."""
    return {factor: axes for factor, dim in dist.factors if (axes := dim_axes(dim))}


__all__ = [
    "consumed",
    "factor_layout",
    "factor_start",
    "local_args",
    "local_points",
    "pending_once",
    "produced",
    "rank_call",
    "replicated",
    "serial_points",
    "shard_call",
    "split_axes",
    "split_factors",
    "tensor_dims",
    "window_axes",
    "window_extent",
    "windows",
]
