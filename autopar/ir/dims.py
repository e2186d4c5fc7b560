"""The layout of one dimension: its sub-dimensions, and the mesh axes that split them.

A tensor dimension is a product of *sub-dimensions*, major to minor, each split over some mesh
axes. The usual `dims_mapping` (one entry per dimension) is the case of one sub-dimension. With
several, layouts are closed under `view`: 384 columns that are 12 heads of 64 can be split by heads
over 5 processes, `[(12, tp), (32, -)]`, which no split of the flat 384 columns expresses.

A sub-dimension of size S over n processes is cut into blocks of ceil(S / n); the last block is
smaller, or empty. Over several mesh axes the blocks are numbered with the first axis as the major
one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from autopar.ir.expr.expression import (
    Binary,
    Coord,
    IntExpr,
    ceildiv,
    common_factor,
    maximum,
    minimum,
    prod,
)
from autopar.ir.expr.facts import divides
from autopar.ir.mesh import ProcessMesh


@dataclass(frozen=True, slots=True)
class SubDim:
    """A factor of a tensor dimension and the mesh axes, major to minor, that it is split over."""

    size: IntExpr
    axes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece(SubDim):
    """A factor of which it is said which elements there are, instead of blocks by the ceiling.

    Attributes:
        start: The first one.
        length: How many there are.
    """

    start: IntExpr = 0
    length: IntExpr = 0


DimLayout = tuple[SubDim, ...]
"""The sub-dimensions of one dimension, major to minor. Their sizes multiply to its size."""


@overload
def block_size(size: int, parts: int) -> int: ...
@overload
def block_size(size: IntExpr, parts: int) -> IntExpr: ...
def block_size(size: IntExpr, parts: int) -> IntExpr:
    """Returns the size of each block but the last when `size` elements are cut into `parts`."""
    return ceildiv(size, parts)


def dim_size(dim: DimLayout) -> IntExpr:
    """Returns the global size of a dimension."""
    return prod(sub.size for sub in dim)


def dim_axes(dim: DimLayout) -> tuple[str, ...]:
    """Returns the mesh axes that split a dimension, major to minor."""
    return tuple(axis for sub in dim for axis in sub.axes)


def whole(size: IntExpr) -> DimLayout:
    """Returns the layout of a dimension that isn't split."""
    return (SubDim(size),)


def block_index(axes: Sequence[str], mesh: ProcessMesh) -> IntExpr:
    """Returns the number of a rank's block along `axes`, the first being the major one."""
    index: IntExpr = 0
    for axis in axes:
        index = index * mesh.axis_size(axis) + coordinate(axis, mesh)
    return index


def coordinate(axis: str, mesh: ProcessMesh) -> IntExpr:
    """Returns a rank's coordinate along an axis of a mesh, from 0 on in a part of one, too."""
    first = mesh.first(axis)
    # Elsewhere it is 0 as well, so that nobody counts with less.
    return maximum(0, Coord(axis) - first) if first else Coord(axis)


def block_of(size: IntExpr, parts: int, index: IntExpr) -> IntExpr:
    """Returns the size of a block of so many parts, of which the last ones are less, or nothing."""
    return block_extent(size, block_size(size, parts), parts, index)[1]


def block_extent(
    size: IntExpr, block: IntExpr, parts: int, index: IntExpr
) -> tuple[IntExpr, IntExpr]:
    """Returns (offset, size) of a block of a dimension.

    Args:
        size: Of the dimension.
        block: Elements of a block; of the last ones less, or nothing.
        parts: How many blocks there are.
        index: Which one it is.
    """
    start = index * block
    if block * parts == size:
        return start, block
    return minimum(start, size), maximum(0, minimum(block, size - start))


def local_extent(sub: SubDim, mesh: ProcessMesh) -> tuple[IntExpr, IntExpr]:
    """Returns (offset, size) of a rank's block of a sub-dimension, in elements of it."""
    if isinstance(sub, Piece):
        return sub.start, sub.length
    parts = mesh.axes_size(sub.axes)
    if parts == 1:
        return 0, sub.size
    return block_extent(sub.size, block_size(sub.size, parts), parts, block_index(sub.axes, mesh))


def local_dim_size(dim: DimLayout, mesh: ProcessMesh) -> IntExpr:
    """Returns the number of elements that a rank holds of a dimension."""
    size: IntExpr = 1
    for sub in dim:
        size = size * local_extent(sub, mesh)[1]
    return size


def normalize_dim(dim: DimLayout, mesh: ProcessMesh) -> DimLayout:
    """Returns the canonical form of a dimension: two forms are equal iff all ranks hold the same.

    Neighbours merge where the merged block boundaries coincide, and axes of one process vanish.
    A split of a single element leaves everything to the first process, wherever it stands: it
    comes first, as one sub-dimension with its axes in the order of the mesh.
    (Only a split over several axes that leaves processes empty may have more than one form.)
    """
    if len(dim) == 1 and not dim[0].axes:
        return dim
    subs = [
        SubDim(sub.size, tuple(axis for axis in sub.axes if mesh.axis_size(axis) > 1))
        for sub in dim
    ]
    merged = _single(subs, mesh)
    for sub in subs:
        if sub.size == 1:
            continue
        while merged and (joined := _join(merged[-1], sub, mesh)) is not None:
            merged.pop()
            sub = joined
        merged.append(sub)
    if any(not divides(mesh.axes_size(sub.axes), sub.size) for sub in merged if sub.axes):
        merged = _settle(merged, mesh)
    return tuple(merged) if merged else (SubDim(1),)


def _single(dim: Sequence[SubDim], mesh: ProcessMesh) -> list[SubDim]:
    """Returns the splits of single elements as one sub-dimension, if there are any."""
    axes = [axis for sub in dim if sub.size == 1 for axis in sub.axes]
    return [SubDim(1, tuple(sorted(axes, key=mesh.axis_index)))] if axes else []


def _settle(dim: Sequence[SubDim], mesh: ProcessMesh) -> list[SubDim]:
    """Fixes the border between an uneven split and the elements just minor to it.

    Blocks of `(2@y)(6)` over 3 processes are those of `(4@y)(3)`: 6 elements, 6 elements, none.
    The canonical form has one sub-dimension if that gives the same blocks, and otherwise the
    smallest one that is split.
    """
    settled: list[SubDim] = []
    rest = list(dim)
    while rest:
        sub = rest.pop(0)
        parts = mesh.axes_size(sub.axes)
        if isinstance(sub.size, int) and sub.size % parts:
            common = math.gcd(sub.size, block_size(sub.size, parts))
            minor = SubDim((rest.pop(0).size if rest and not rest[0].axes else 1) * common)
            least = SubDim(sub.size // common, sub.axes)
            sub = _join(least, minor, mesh) or least
            if sub is least and minor.size != 1:
                rest.insert(0, minor)
        settled.append(sub)
    return settled


def _join(major: SubDim, minor: SubDim, mesh: ProcessMesh) -> SubDim | None:
    size = major.size * minor.size
    if not major.axes and not minor.axes:
        return SubDim(size)
    if not minor.axes:
        parts = mesh.axes_size(major.axes)
        aligned = block_size(major.size, parts) * minor.size == block_size(size, parts)
        return SubDim(size, major.axes) if aligned else None
    if major.size == mesh.axes_size(major.axes):
        parts = mesh.axes_size(minor.axes)
        is_even = divides(parts, minor.size)
        return SubDim(size, major.axes + minor.axes) if is_even else None
    return None


def factorize_dim(
    dim: DimLayout, sizes: Sequence[IntExpr], mesh: ProcessMesh
) -> tuple[DimLayout, ...] | None:
    """Cuts a dimension's layout along factors of these sizes, major to minor.

    The inverse of concatenation: `normalize_dim(sum(result, ()))` equals `normalize_dim(dim)`.
    The split of a single element, whose place isn't known, goes to the first factor of one
    element, or else to the first. Returns None if the split doesn't respect the factors'
    boundaries.
    """
    single = [sub for sub in dim if sub.size == 1 and sub.axes]
    rest = [sub for sub in dim if sub.size != 1]
    home = sizes.index(1) if 1 in sizes else 0
    result: list[DimLayout] = []
    for at, size in enumerate(sizes):
        taken = [*single] if at == home else []
        need = size
        while need != 1:
            if not rest:
                return None
            piece = _take(rest.pop(0), need, mesh)
            if piece is None:
                return None
            head, tail = piece
            taken.append(head)
            need = need // head.size if head.size != 0 else 1
            if tail is not None:
                if not tail.axes and rest and not rest[0].axes:
                    tail = SubDim(tail.size * rest.pop(0).size)
                rest.insert(0, tail)
        result.append(tuple(taken) or (SubDim(1),))
    return None if rest or (single and not sizes) else tuple(result)


def _take(sub: SubDim, need: IntExpr, mesh: ProcessMesh) -> tuple[SubDim, SubDim | None] | None:
    """Cuts `sub` into a head whose size divides `need` and a tail; None if it can't be cut."""
    if need == 0 or sub.size == 0:
        return (sub, None) if need == sub.size else None
    shared = common_factor(need, sub.size)
    if shared == sub.size:
        return sub, None
    if shared == 1:
        return None
    minor = sub.size // shared
    if not sub.axes:
        return SubDim(shared), SubDim(minor)
    for count in range(len(sub.axes), -1, -1):
        head, tail = SubDim(shared, sub.axes[:count]), SubDim(minor, sub.axes[count:])
        if _join(head, tail, mesh) == sub:
            return head, tail
    return None


def dim_str(dim: DimLayout) -> str:
    """Returns a dimension as text: `8@dp`, `8@(dp,tp)`, or `(12@tp)(64)` with sub-dimensions."""
    if len(dim) == 1:
        return _sub_str(dim[0])
    return "".join(f"({_sub_str(sub)})" for sub in dim)


def _sub_str(sub: SubDim) -> str:
    if not sub.axes:
        return str(sub.size)
    size = f"({sub.size})" if isinstance(sub.size, Binary) else str(sub.size)
    return f"{size}@{sub.axes[0]}" if len(sub.axes) == 1 else f"{size}@({','.join(sub.axes)})"
