"""Transfers: from a part of a mesh to another one that cuts a dimension otherwise.

Along an axis of which both parts have runs, or one has a run and the other one index, no process
has a counterpart. What is split along it needn't be put together before: each process that holds a
block of a dimension sends to each of the others what that wants of it.

    stage 0, pp=0..2   [6@pp, 8]: 2 rows each         stage 1, pp=3..4   [6@pp, 8]: 3 rows each
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from autopar.cost.collectives import CommunicationModel
from autopar.cost.reshard.places import Place, nests
from autopar.cost.reshard.reshards import Move
from autopar.cost.transfer import messages_seconds
from autopar.ir.dims import SubDim, block_size
from autopar.ir.expr.expression import IntExpr, planned, prod
from autopar.ir.expr.facts import divides
from autopar.ir.fixed import Index, indices_of
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.rules.transfer import Transfer


def crossed_axis(source: ProcessMesh, target: ProcessMesh) -> str:
    """Returns the only axis along which two parts of a mesh differ and one has a run; or ""."""
    here, there = dict(source.fixed), dict(target.fixed)
    differing = [axis for axis in {**here, **there} if here.get(axis) != there.get(axis)]
    if len(differing) != 1 or here.keys() != there.keys():
        return ""
    (axis,) = differing
    one, other = here[axis], there[axis]
    is_apart = set(indices_of(one)).isdisjoint(indices_of(other))
    is_run = isinstance(one, range) or isinstance(other, range)
    is_box = isinstance(one, tuple) or isinstance(other, tuple)
    return axis if is_apart and is_run and not is_box else ""


def transfers_between(
    model: CommunicationModel, source: Layout, target: Layout, itemsize: int
) -> Iterator[tuple[Layout, Move]]:
    """Yields transfers from one part of a mesh to another, each with the layout to begin with.

    Before, a reshard leads from `source` to that; behind, another one to `target`.

    Args:
        model: Predicts seconds.
        source, target: Normalized layouts on two parts.
        itemsize: Bytes per element.
    """
    axis = crossed_axis(source.mesh, target.mesh)
    if not axis or 0 in source.shape:
        return
    before = source.onto(target.mesh).onto(source.mesh)
    known = dict.fromkeys((before, target.onto(source.mesh)))
    for common in known:
        for dim in range(len(common.dims)):
            ends = (
                _ends(common, dim, axis, source),
                _ends(common.onto(target.mesh), dim, axis, target, may_copy=True),
            )
            for leaves, arrives in product(*ends):
                move = _transfer(model, leaves, arrives, dim, axis, itemsize)
                if move is not None:
                    yield leaves, move


def _ends(
    common: Layout, dim: int, axis: str, wanted: Layout, *, may_copy: bool = False
) -> Sequence[Layout]:
    """Returns layouts in which a dimension may leave or arrive.

    Args:
        common: Split along the axes that both parts have.
        dim: The dimension.
        axis: The axis along which the parts differ.
        wanted: The layout that there is before, or is to be behind.
        may_copy: Whether all processes along the axis may have the same.
    """
    if axis not in common.mesh.dim_names:
        return [common]
    found = [common] if may_copy else []
    rest = replace(wanted, dims=_without(wanted, axis)).normalized()
    if rest == common and axis in (a for sub in wanted.dims[dim] for a in sub.axes):
        return [*found, wanted]
    sub = common.dims[dim][0]
    dims = (*common.dims[:dim], (SubDim(sub.size, (*sub.axes, axis)),), *common.dims[dim + 1 :])
    split = replace(common, dims=dims).normalized()
    return [*found, split] if len(common.dims[dim]) == 1 else found


def _without(layout: Layout, axis: str) -> tuple[tuple[SubDim, ...], ...]:
    return tuple(
        tuple(SubDim(sub.size, tuple(a for a in sub.axes if a != axis)) for sub in dim)
        for dim in layout.dims
    )


def _transfer(
    model: CommunicationModel,
    leaves: Layout,
    arrives: Layout,
    dim: int,
    axis: str,
    itemsize: int,
) -> Move | None:
    """Returns the transfer between two layouts; None if it isn't one of whole blocks."""
    pairs = [*zip(leaves.dims, arrives.dims, strict=True)]
    if leaves.partial or any(one != other for at, (one, other) in enumerate(pairs) if at != dim):
        return None
    mine, theirs = pairs[dim]
    if len(mine) != 1 or len(theirs) != 1:
        return None
    own, wanted = ({*sub.axes} - {axis} for (sub,) in (mine, theirs))
    others = (each for at, (each, _) in enumerate(pairs) if at != dim)
    elsewhere = {a for each in others for sub in each for a in sub.axes}
    if own != wanted or axis in elsewhere:
        return None
    major = _common_major(leaves, arrives, dim, axis)
    place = Place(dim, 1, mine[0].size, 1)
    axes = tuple(a for a in leaves.mesh.root.dim_names if a == axis or a in own - {*major})
    seconds = _seconds(model, leaves, arrives, dim, axes, itemsize)
    nbytes = math.prod(_block(arrives)) * itemsize
    return Move("transfer", axes, arrives, place, place, seconds=seconds, bytes=nbytes)


def _common_major(leaves: Layout, arrives: Layout, dim: int, axis: str) -> list[str]:
    """Returns the axes that cut a dimension alike in both layouts, before others cut the blocks."""
    (mine,), (theirs,) = leaves.dims[dim], arrives.dims[dim]
    sides = ((leaves.mesh, mine.axes), (arrives.mesh, theirs.axes))
    found: list[str] = []
    for one, other in zip(mine.axes, theirs.axes, strict=False):
        longer = [*found, one]
        major = leaves.mesh.axes_size(longer)
        rest = (mesh.axes_size(axes) // major for mesh, axes in sides)
        if one != other or one == axis or not divides(major, mine.size):
            break
        if not all(nests(mine.size, major, minor) for minor in rest):
            break
        found = longer
    return found


class Blocks(NamedTuple):
    """The blocks of a dimension that processes hold who differ along some axes only.

    Attributes:
        size: Of what these processes hold of the dimension together.
        parts: How many blocks that is cut into.
        copies: How many processes hold each.
        members: The coordinates along the axes of who holds them, in the order of the blocks.
    """

    size: IntExpr
    parts: int
    copies: int
    members: Sequence[tuple[int, ...]]

    @property
    def block(self) -> IntExpr:
        """Elements of a block."""
        return block_size(self.size, self.parts)


def blocks_of(layout: Layout, dim: int, axes: Sequence[str]) -> Blocks:
    """Returns the blocks of a dimension along axes.

    Args:
        layout: In which the dimension isn't cut within.
        dim: The dimension.
        axes: The axes; others that cut it are major to them.
    """
    (sub,) = layout.dims[dim]
    mesh, fixed = layout.mesh, dict(layout.mesh.fixed)
    own = [axis for axis in sub.axes if axis in axes]
    order = (*own, *(axis for axis in axes if axis not in own))
    ranges = (_indices(mesh, axis, fixed.get(axis)) for axis in order)
    found = [dict(zip(order, coords, strict=True)) for coords in product(*ranges)]
    major = mesh.axes_size([axis for axis in sub.axes if axis not in axes])
    parts = mesh.axes_size(own)
    members = [tuple(coords[axis] for axis in axes) for coords in found]
    return Blocks(sub.size // major, parts, len(members) // parts, members)


def _indices(mesh: ProcessMesh, axis: str, index: Index | None) -> Sequence[int]:
    return range(mesh.axis_size(axis)) if index is None else indices_of(index)


def _seconds(
    model: CommunicationModel,
    leaves: Layout,
    arrives: Layout,
    dim: int,
    axes: Sequence[str],
    itemsize: int,
) -> float:
    here, there = (blocks_of(layout, dim, axes) for layout in (leaves, arrives))
    blocks = planned(here.block), planned(there.block)
    transfer = Transfer(planned(here.size), here.parts, *blocks, there.copies)
    row = math.prod(each for at, each in enumerate(_block(leaves)) if at != dim) * itemsize
    return messages_seconds(transfer, row, axes, model)


def _block(layout: Layout) -> list[int]:
    count = layout.mesh.axes_size
    return [
        planned(prod(block_size(sub.size, count(sub.axes)) for sub in dim)) for dim in layout.dims
    ]
