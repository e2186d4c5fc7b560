"""From the moves of a reshard to collectives and local ops on a rank's pieces.

A collective works on whole dimensions. A move of a sub-dimension therefore looks at the local
tensor through a view in which the sub-dimension is a dimension of its own; where the rest of its
dimension is one element on every rank, no view is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from autopar.base.errors import VerificationError
from autopar.cost.reshard.permutation import permutation
from autopar.cost.reshard.places import Place, cut, widen
from autopar.cost.reshard.reshards import Move, Reshard
from autopar.cost.reshard.transfers import blocks_of
from autopar.ir import emitted
from autopar.ir.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    PERMUTE,
    REDISTRIBUTE,
    REDUCE_SCATTER,
    TRANSFER,
)
from autopar.ir.dims import (
    DimLayout,
    SubDim,
    block_index,
    block_size,
    dim_axes,
    dim_size,
    local_dim_size,
    local_extent,
)
from autopar.ir.expr.expression import IntExpr, exact_quotient, minimum, prod
from autopar.ir.expr.facts import can_exceed
from autopar.ir.fixed import indices_of
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Arg
from autopar.ir.rules.numbering import Numbering
from autopar.ir.rules.redistribution import Exchange
from autopar.ir.rules.window import Window


@dataclass(frozen=True, slots=True)
class LocalStep:
    """An op that a reshard becomes. Its tensor operand `self` is the result of the step before.

    Attributes:
        kind: The op.
        args: Its arguments but `self`.
        layout: The layout of its result, whose dimensions may be parts of the tensor's.
    """

    kind: str
    args: tuple[tuple[str, Arg], ...]
    layout: Layout


def lower_reshard(source: Layout, reshard: Reshard) -> list[LocalStep]:
    """Returns the ops that carry out a reshard.

    Args:
        source: The layout before.
        reshard: The moves.
    """
    steps: list[LocalStep] = []
    layout = source.normalized()
    shown = _unexposed(layout)
    for move in reshard.moves:
        if move.kind in _OF_PIECES:
            if shown != _unexposed(layout):
                steps.append(_view(layout, _whole(layout)))
            steps += _OF_PIECES[move.kind](layout, move)
            layout, shown = move.layout, _unexposed(move.layout)
            continue
        before, after = _exposures(layout, move)
        if shown != _shape(before):
            steps.append(_view(layout, before))
        steps.append(_step(move, before, after))
        layout, shown = move.layout, _shape(after)
    if shown != _unexposed(layout):
        steps.append(_view(layout, _whole(layout)))
    return steps


@dataclass(frozen=True, slots=True)
class _Part:
    """A dimension of the local tensor as a move sees it: a part of dimension `dim`.

    `core` is the sub-dimension of it that the move is about; the rest is one element.
    """

    dim: int
    outer: IntExpr
    layout: DimLayout
    core: DimLayout


_Shape = tuple[tuple[int, IntExpr, IntExpr], ...]


def _shape(parts: Sequence[_Part]) -> _Shape:
    return tuple((part.dim, part.outer, dim_size(part.layout)) for part in parts)


def _whole(layout: Layout) -> list[_Part]:
    return [_Part(dim_number, 1, dim, dim) for dim_number, dim in enumerate(layout.dims)]


def _unexposed(layout: Layout) -> _Shape:
    return _shape(_whole(layout))


def _exposures(layout: Layout, move: Move) -> tuple[list[_Part], list[_Part]]:
    """Returns the dimensions that a move needs, as they lie before and after it."""
    places = [place for place in (move.source, move.target) if place is not None]
    if len({place.dim for place in places}) == len(places):
        places = [_widen(place, layout, move) for place in places]
    before: list[_Part] = []
    after: list[_Part] = []
    for number, (old, new) in enumerate(zip(layout.dims, move.layout.dims, strict=True)):
        mine = [place for place in places if place.dim == number]
        if len(mine) == 2 and _is_inside(*mine):
            mine.reverse()
        if mine:
            pair = _exposed(old, new, mine, layout.mesh)
            before += pair[0]
            after += pair[1]
        else:
            before.append(_Part(number, 1, old, old))
            after.append(_Part(number, 1, new, new))
    return before, after


def _widen(place: Place, layout: Layout, move: Move) -> Place:
    """Returns the place with what is just minor to it, if both layouts leave it in one piece."""
    before, after = (widen(place, dims, layout.mesh) for dims in (layout.dims, move.layout.dims))
    return before if before == after else place


def _is_inside(place: Place, other: Place) -> bool:
    """Returns whether a place in a dimension is minor to another; a single element comes first."""
    if place.outer == other.outer:
        return other.size == 1
    return exact_quotient(place.outer, other.outer) is not None


def _exposed(
    old: DimLayout, new: DimLayout, places: Sequence[Place], mesh: ProcessMesh
) -> tuple[list[_Part], list[_Part]]:
    """Returns a dimension cut at places, or whole if all but one place is one element anyway."""
    number = places[0].dim
    was, now = cut(old, places, mesh), cut(new, places, mesh)
    if was is None or now is None:
        raise VerificationError("a move doesn't fit its layout", [f"{places} of {old} to {new}"])
    if len(places) == 1 and all(local_dim_size(part, mesh) == 1 for part in was[::2]):
        return [_Part(number, 1, old, was[1])], [_Part(number, 1, new, now[1])]
    before: list[_Part] = []
    after: list[_Part] = []
    outer: IntExpr = 1
    for position, (mine, then) in enumerate(zip(was, now, strict=True)):
        if position % 2 or can_exceed(dim_size(mine), 1) or dim_axes(mine):
            before.append(_Part(number, outer, mine, mine))
            after.append(_Part(number, outer, then, then))
        outer = outer * dim_size(mine)
    return before, after


def _step(move: Move, before: Sequence[_Part], after: Sequence[_Part]) -> LocalStep:
    layout = Layout(move.layout.mesh, tuple(part.layout for part in after), move.layout.partial)
    kind, args = _OPS[move.kind](move, before, after)
    return LocalStep(kind, tuple(args), layout.normalized())


_Lowered = tuple[str, Iterable[tuple[str, Arg]]]


def _all_gather(move: Move, before: Sequence[_Part], after: Sequence[_Part]) -> _Lowered:
    dim = _changed(before, after, move.source)
    size = local_dim_size(after[dim].layout, move.layout.mesh)
    return ALL_GATHER, iter((("dim", dim), ("size", size), ("axes", move.axes)))


def _all_reduce(move: Move, before: Sequence[_Part], after: Sequence[_Part]) -> _Lowered:
    return ALL_REDUCE, iter((("monoid", move.monoid), ("axes", move.axes)))


def _reduce_scatter(move: Move, before: Sequence[_Part], after: Sequence[_Part]) -> _Lowered:
    dim = _changed(before, after, move.target)
    args = (("dim", dim), ("monoid", move.monoid), ("axes", move.axes))
    return REDUCE_SCATTER, iter(args)


def _all_to_all(move: Move, before: Sequence[_Part], after: Sequence[_Part]) -> _Lowered:
    split = _changed(before, after, move.target)
    concat = _changed(before, after, move.source)
    size = local_dim_size(after[concat].layout, move.layout.mesh)
    args = (
        ("split_dim", split),
        ("concat_dim", concat),
        ("concat_size", size),
        ("axes", move.axes),
    )
    return ALL_TO_ALL, iter(args)


def _slice(move: Move, before: Sequence[_Part], after: Sequence[_Part]) -> _Lowered:
    dim = _changed(before, after, move.target)
    mesh = move.layout.mesh
    (held,), (kept,) = before[dim].core, after[dim].core
    start, length = local_extent(kept, mesh)
    if held.axes:
        block = block_size(kept.size, mesh.axes_size(kept.axes))
        start = block_index(move.axes, mesh) * block
        start = minimum(start, local_extent(held, mesh)[1])
    return emitted.slice_(start, start + length, dim or None)


def _permute(layout: Layout, move: Move) -> Iterator[LocalStep]:
    """Yields the permutation; pieces that are smaller than others are padded on their way."""
    padded, received = _padded(layout), _padded(move.layout)
    for dim, (size, full) in enumerate(zip(layout.local_shape, padded.local_shape, strict=True)):
        if size != full:
            layout = replace(layout, dims=_with(layout.dims, dim, padded.dims[dim]))
            yield LocalStep(*emitted.window(dim, 0, full, 0), layout)
    who = permutation(_runs(layout), _runs(received), received.mesh)
    args: tuple[tuple[str, Arg], ...]
    args = (("sizes", who.sizes), ("order", who.order), ("axes", who.axes))
    yield LocalStep(PERMUTE, args, received)
    for dim, size in enumerate(move.layout.local_shape):
        if size != received.local_shape[dim]:
            received = replace(received, dims=_with(received.dims, dim, move.layout.dims[dim]))
            yield LocalStep(*emitted.slice_(0, size, dim or None), received)


def _restrict(layout: Layout, move: Move) -> Iterator[LocalStep]:
    """Yields what a process of a part of the mesh has there already."""
    yield LocalStep(*emitted.alias(), move.layout)


def _send(layout: Layout, move: Move) -> Iterator[LocalStep]:
    """Yields the move to the same coordinates on another slice: a group of two for each process.

    The first member is who sends. So there and back are two groups, which needn't wait for one
    another. On a box there are several who receive it.
    """
    here, there = (
        [*product(*(indices_of(fixed[axis]) for axis in move.axes))]
        for fixed in (dict(layout.mesh.fixed), dict(move.layout.mesh.fixed))
    )
    among = (*here, *(coords for coords in there if coords not in here))
    args: tuple[tuple[str, Arg], ...] = (("source", 0), ("axes", move.axes))
    yield LocalStep(BROADCAST, (*args, ("among", among)), move.layout)


def _spread(layout: Layout, move: Move) -> Iterator[LocalStep]:
    """Yields the move from one index of the axes to all."""
    source, here = 0, dict(layout.mesh.fixed)
    for axis in move.axes:
        (index,) = indices_of(here[axis])
        source = source * move.layout.mesh.axis_size(axis) + index
    args: tuple[tuple[str, Arg], ...] = (("source", source), ("axes", move.axes))
    yield LocalStep(BROADCAST, args, move.layout)


def _transfer(layout: Layout, move: Move) -> Iterator[LocalStep]:
    """Yields the move of the blocks of a dimension to others, who follow in its group."""
    assert move.source is not None
    dim, after = move.source.dim, move.layout
    here, there = (blocks_of(each, dim, move.axes) for each in (layout, after))
    among = (*here.members, *there.members)
    args: tuple[tuple[str, Arg], ...] = (
        ("dim", dim),
        ("size", here.size),
        ("senders", here.parts),
        ("block", here.block),
        ("arriving_block", there.block),
        ("copies", there.copies),
        ("axes", move.axes),
        ("among", among),
    )
    yield LocalStep(TRANSFER, args, after)


def _padded(layout: Layout) -> Layout:
    """Returns a layout in which all processes hold as much as the one that holds most."""
    count = layout.mesh.axes_size
    dims = tuple(
        tuple(
            SubDim(block_size(sub.size, count(sub.axes)) * count(sub.axes), sub.axes) for sub in dim
        )
        for dim in layout.dims
    )
    return replace(layout, dims=dims)


def _runs(layout: Layout) -> tuple[tuple[str, ...], ...]:
    return (*(sub.axes for dim in layout.dims for sub in dim), layout.partial_axes)


def _with(dims: tuple[DimLayout, ...], number: int, dim: DimLayout) -> tuple[DimLayout, ...]:
    return (*dims[:number], dim, *dims[number + 1 :])


def _redistribute(move: Move, before: Sequence[_Part], after: Sequence[_Part]) -> _Lowered:
    dim = _changed(before, after, move.target)
    mesh = move.layout.mesh
    held, read = (parts[dim].layout for parts in (before, after))
    sizes = tuple(mesh.axis_size(axis) for axis in move.axes)
    positions = (tuple(map(move.axes.index, dim_axes(cut))) for cut in (held, read))
    size, numbering = dim_size(held), Numbering(sizes, *positions)
    blocks = _largest(held, mesh), _largest(read, mesh)
    exchange = Exchange(size, blocks[0], size, blocks[1], Window(""), numbering)
    return REDISTRIBUTE, iter((("dim", dim), *exchange.args, ("axes", move.axes)))


def _largest(dim: DimLayout, mesh: ProcessMesh) -> IntExpr:
    """Returns the number of elements that a process holds of a dimension at most."""
    return prod(block_size(sub.size, mesh.axes_size(sub.axes)) for sub in dim)


def _to_partial(move: Move, before: Sequence[_Part], after: Sequence[_Part]) -> _Lowered:
    return emitted.to_partial(move.monoid, block_index(move.axes, move.layout.mesh))


def _reshape_empty(move: Move, before: Sequence[_Part], after: Sequence[_Part]) -> _Lowered:
    return emitted.view(move.layout.local_shape)


_OPS = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "redistribute": _redistribute,
    "slice": _slice,
    "to_partial": _to_partial,
    "reshape_empty": _reshape_empty,
}


_OF_PIECES = {
    "permute": _permute,
    "restrict": _restrict,
    "send": _send,
    "spread": _spread,
    "transfer": _transfer,
}
"""Moves that take the piece as it is, whatever its dimensions."""


def _changed(before: Sequence[_Part], after: Sequence[_Part], place: Place | None) -> int:
    """Returns the position of the part that holds a place."""
    if place is None:
        raise ValueError("the move has no place")
    for position, part in enumerate(after):
        is_changed = before[position].layout != part.layout
        if part.dim == place.dim and is_changed and _is_in(place, part):
            return position
    raise ValueError(f"no dimension holds {place}")


def _is_in(place: Place, part: _Part) -> bool:
    """Whether a place is within a part of the same dimension."""
    begin = exact_quotient(place.outer, part.outer)
    ends = part.outer * dim_size(part.layout), place.outer * place.size
    return begin is not None and exact_quotient(*ends) is not None


def _view(layout: Layout, parts: Sequence[_Part]) -> LocalStep:
    shown = Layout(layout.mesh, tuple(part.layout for part in parts), layout.partial)
    return LocalStep(*emitted.view(shown.local_shape), shown.normalized())
