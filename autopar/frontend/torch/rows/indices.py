"""Where the rows of an index are in what it reads: `h[top_x]`, `w[top_x, idx, None]`, `h[mask]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from autopar.frontend.torch.rows.masked import is_mask
from autopar.frontend.torch.rows.picks import Picks
from autopar.frontend.torch.rows.selections import Selection, same


@dataclass(frozen=True)
class RowIndex:
    """Where the rows of an index are.

    Attributes:
        selection: The places.
        basic: The index with everything in the place of those.
        axes: The dimensions of the mask whose positions are told, in order.
        dims: Which dimensions of what `basic` reads they are positions in.
        at: Where rows are in what is read.
    """

    selection: Selection
    basic: tuple[Any, ...]
    axes: tuple[int, ...]
    dims: tuple[int, ...]
    at: int


def row_index(picks: Picks, source: Tensor, index: Any) -> RowIndex | None:
    """Returns where an index has rows, if it has some and nothing else but slices."""
    parts = list(index) if isinstance(index, tuple) else [index]
    tensors = [each for each in parts if isinstance(each, Tensor)]
    if not tensors or not all(
        isinstance(each, (Tensor, slice, int, type(None), type(...))) for each in parts
    ):
        return None
    if any(isinstance(each, bool) for each in parts):
        return None
    known: dict[int, tuple[Selection, tuple[int, ...]]] = {}
    for each in tensors:
        rows = picks.selected.rows(each)
        if rows is not None and rows.axis is not None and each.ndim == 1:
            known[id(each)] = (rows.selection, (rows.axis,))
        elif rows is None and is_mask(each) and (len(tensors) == 1 or picks.selected.active):
            selection = picks.selection(each)
            if selection is None:
                return None
            known[id(each)] = (selection, tuple(range(each.ndim)))
        else:
            return None
    first = known[id(tensors[0])][0]
    if not all(same(each, first) and each.shape == first.shape for each, _ in known.values()):
        return None
    return _laid_out(source, parts, first, known)


def _laid_out(
    source: Tensor,
    parts: Sequence[Any],
    selection: Selection,
    known: Mapping[int, tuple[Selection, tuple[int, ...]]],
) -> RowIndex | None:
    """Returns where the positions of an index are in what its slices read."""
    used = sum(
        len(known[id(each)][1]) if isinstance(each, Tensor) else 1
        for each in parts
        if each is not None and each is not ...
    )
    if used > source.ndim:
        return None
    basic: list[Any] = []
    axes: list[int] = []
    dims: list[int] = []
    at = 0
    for each in parts:
        if each is ...:
            basic.append(each)
            at += source.ndim - used
        elif isinstance(each, Tensor):
            for axis in known[id(each)][1]:
                basic.append(slice(None))
                axes.append(axis)
                dims.append(at)
                at += 1
        else:
            basic.append(each)
            at += not isinstance(each, int)
    if len(set(axes)) != len(axes):
        return None
    beside = dims == list(range(dims[0], dims[0] + len(dims)))
    read = source[tuple(basic)]
    if any(read.shape[dim] < selection.shape[axis] for dim, axis in zip(dims, axes, strict=True)):
        return None
    return RowIndex(selection, tuple(basic), tuple(axes), tuple(dims), dims[0] if beside else 0)


def ordered(view: Tensor, index: RowIndex) -> Tensor:
    """Returns a view with the dimensions of positions in the order of the mask's dimensions."""
    shape = index.selection.shape
    for dim, axis in zip(index.dims, index.axes, strict=True):
        if view.shape[dim] > shape[axis]:
            view = view.narrow(dim, 0, shape[axis])
    placed = [dim for _, dim in sorted(zip(index.axes, index.dims, strict=True))]
    others = [dim for dim in range(view.ndim) if dim not in placed]
    order = [*others[: index.at], *placed, *others[index.at :]]
    return view if order == list(range(view.ndim)) else view.permute(order)


def spread(view: Tensor, index: RowIndex) -> Tensor:
    """Returns what is read for each place of the mask."""
    shape = index.selection.shape
    found = ordered(view, index)
    for axis in range(len(shape)):
        if axis not in index.axes:
            found = found.unsqueeze(index.at + axis)
    ahead, behind = found.shape[: index.at], found.shape[index.at + len(shape) :]
    return found.expand(*ahead, *shape, *behind)


def picked(tensor: Tensor, chosen: Mapping[int, int], ndim: int) -> Tensor:
    """Returns a part of a tensor along dimensions of the mask, counted as if it had them all."""
    left = ndim - tensor.ndim
    for axis in sorted(chosen, reverse=True):
        if axis - left >= 0:
            at = chosen[axis] if tensor.shape[axis - left] > 1 else 0
            tensor = tensor.select(axis - left, at)
    return tensor
