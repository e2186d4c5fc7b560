"""Boxes: the piece of a global tensor that one rank holds, taken from it and put back.

A box gives, for each sub-dimension of each tensor dimension, the elements that the rank holds. So
a tensor is viewed with its sub-dimensions exposed, narrowed along each, and merged again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from autopar.ir.dims import block_size, local_extent
from autopar.ir.expr.expression import IntExpr, evaluate
from autopar.ir.layout import Layout
from autopar.ir.program import BoxDim


class Extent(NamedTuple):
    """`length` of the `size` elements of a sub-dimension, from `start` on."""

    size: int
    start: int
    length: int


Box = tuple[tuple[Extent, ...], ...]
"""Per tensor dimension, the extents of its sub-dimensions, major to minor."""


Region = tuple[tuple[int, int], ...]
"""Per tensor dimension, (start, length) of a part of a larger tensor."""


def narrowed(tensor: Tensor, region: Region | None) -> Tensor:
    """Returns the view of a tensor that is within a region; all of it for None."""
    for dim, (start, length) in enumerate(region or ()):
        tensor = tensor.narrow(dim, start, length)
    return tensor


def whole_box(shape: Sequence[int]) -> Box:
    """Returns the box of a rank that holds the whole tensor."""
    return tuple((Extent(size, 0, size),) for size in shape)


def blocks(size: int, parts: int) -> list[tuple[int, int]]:
    """Returns (start, length) of each of the blocks into which `size` elements are cut."""
    block = block_size(size, parts)
    starts = [min(index * block, size) for index in range(parts)]
    return [(start, min(block, size - start)) for start in starts]


def nothing_of(shape: Sequence[int]) -> Box:
    """Returns the box of a rank that holds no element of a tensor; a number's has a dimension."""
    first, *others = shape or (1,)
    return ((Extent(first, 0, 0),), *whole_box(others))


def resolve_box(
    box: Sequence[Sequence[BoxDim]], shape: Sequence[IntExpr], coords: Mapping[str, int]
) -> Box:
    """Returns the box of `Port.box` on the rank with these coordinates.

    A port without a box (of a serial program) stands for the whole tensor of this shape. A scalar
    on a slice of the mesh has a dimension more, without an element where it isn't.
    """
    if not box:
        return whole_box([evaluate(size, coords) for size in shape])
    found = tuple(
        tuple(_extent(sub.size, sub.start, sub.length, coords) for sub in dim) for dim in box
    )
    return found if is_empty(found) else found[: len(shape)]


def layout_box(layout: Layout, coords: Mapping[str, int]) -> Box:
    """Returns the piece that the process with these mesh coordinates holds under a layout."""
    return tuple(
        tuple(_extent(sub.size, *local_extent(sub, layout.mesh), coords) for sub in dim)
        for dim in layout.dims
    )


def _extent(size: IntExpr, start: IntExpr, length: IntExpr, coords: Mapping[str, int]) -> Extent:
    if isinstance(size, int) and isinstance(start, int) and isinstance(length, int):
        return Extent(size, start, length)
    return Extent(evaluate(size, coords), evaluate(start, coords), evaluate(length, coords))


def box_shape(box: Box) -> tuple[int, ...]:
    """Returns the shape of the piece."""
    return tuple(math.prod(extent.length for extent in dim) for dim in box)


def is_empty(box: Box) -> bool:
    """Returns whether the piece has no elements."""
    return any(extent.length == 0 for dim in box for extent in dim)


def is_whole(box: Box) -> bool:
    """Returns whether the piece is the whole tensor."""
    return all(extent.length == extent.size for dim in box for extent in dim)


def take(tensor: Tensor, box: Box) -> Tensor:
    """Returns a rank's piece of a global tensor, contiguous; a copy unless it is a plain view."""
    if is_whole(box):
        return tensor.contiguous()
    return exposed(tensor, box).reshape(box_shape(box)).contiguous()


def place(tensor: Tensor, piece: Tensor, box: Box) -> None:
    """Writes a rank's piece into a contiguous global tensor."""
    target = exposed(tensor, box)
    target.copy_(piece.reshape(target.shape))


def fill(piece: Tensor, tensor: Tensor, box: Box) -> None:
    """Writes a rank's piece of a global tensor into contiguous memory, without a copy between."""
    source = exposed(tensor, box)
    piece.view(source.shape).copy_(source)


def exposed(tensor: Tensor, box: Box) -> Tensor:
    """Returns a rank's piece of a tensor as a view, with a dimension for each sub-dimension."""
    extents = [extent for dim in box for extent in dim]
    view = tensor.reshape([extent.size for extent in extents])
    for axis, extent in enumerate(extents):
        if extent.length != extent.size:
            view = view.narrow(axis, extent.start, extent.length)
    return view
