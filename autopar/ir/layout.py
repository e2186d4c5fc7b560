"""Layouts: which piece of a tensor each process holds.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeGuard, overload

from autopar.base.errors import AnnotationError
from autopar.ir.expr.expression import (
    Binary,
    Coord,
    IntExpr,
    ceildiv,
    common_factor,
    maximum,
    minimum,
    prod,
    shape_str,
    sizes_of,
    substitute,
)
from autopar.ir.expr.facts import divides
from autopar.ir.mesh import ProcessMesh

MONOIDS = ("sum", "max", "min", "prod", "any", "all")


@dataclass(frozen=True, slots=True)
class SubDim:
    """A factor of a tensor dimension and the mesh axes, major to minor, that it is split over."""

    size: IntExpr
    axes: tuple[str, ...] = ()


DimLayout = tuple[SubDim, ...]
"""The sub-dimensions of one dimension, major to minor. Their sizes multiply to its size."""

DimMapping = int | str | None | tuple[int | str, ...] | Sequence[int | str]
"""How users write one entry of a dims_mapping: -1 or None, an axis, or several axes."""

ExactMapping = DimMapping | DimLayout
"""The same, or the sub-dimensions themselves, as plans have them."""


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
        index = index * mesh.axis_size(axis) + Coord(axis)
    return index


def block_of(size: IntExpr, parts: int, index: IntExpr) -> IntExpr:
    """Returns the size of a block of so many parts, of which the last ones are less, or nothing."""
    block = block_size(size, parts)
    if divides(parts, size):
        return block
    return maximum(0, minimum(block, size - index * block))


def local_extent(sub: SubDim, mesh: ProcessMesh) -> tuple[IntExpr, IntExpr]:
    """Returns (offset, size) of a rank's block of a sub-dimension, in elements of it."""
    parts = mesh.axes_size(sub.axes)
    if parts == 1:
        return 0, sub.size
    index = block_index(sub.axes, mesh)
    start = index * block_size(sub.size, parts)
    if not divides(parts, sub.size):
        start = minimum(start, sub.size)
    return start, block_of(sub.size, parts, index)


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


Partial = tuple[tuple[str, str], ...]
"""Pending reductions as (mesh axis, monoid), in the order of the mesh's axes."""


@dataclass(frozen=True)
class Layout:
    """How a tensor lies on a mesh (a *TensorDist*, in the terms of the static auto-parallel field).

    Attributes:
        mesh: The processes that hold the tensor.
        dims: One entry per tensor dimension.
        partial: Mesh axes over which the tensor is pending a reduction, with the monoid. The
            tensor's value is the reduction of the pieces of all processes along those axes.
        mask: Ids of the processes that hold the tensor; None if all of the mesh do.
        offload: Memory that holds it between uses: "" for the device's own.
    """

    mesh: ProcessMesh
    dims: tuple[DimLayout, ...]
    partial: Partial = ()
    mask: tuple[int, ...] | None = None
    offload: str = ""

    @classmethod
    def replicated(cls, mesh: ProcessMesh, shape: Sequence[IntExpr]) -> Layout:
        """Returns the layout in which every process holds all of a tensor of this shape."""
        return cls(mesh, tuple(whole(size) for size in shape))

    @classmethod
    def from_dims_mapping(
        cls, mesh: ProcessMesh, shape: Sequence[IntExpr], dims_mapping: Sequence[ExactMapping]
    ) -> Layout:
        """Returns the layout that a user wrote down.

        Args:
            mesh: The processes.
            shape: The tensor's global shape.
            dims_mapping: Per dimension: -1 or None (not split), a mesh axis by index or name,
                several axes, major to minor, or the sub-dimensions themselves.

        Raises:
            AnnotationError: On a wrong length, an unknown axis, an axis used twice, or
                sub-dimensions that don't multiply to the dimension.
        """
        check_length(dims_mapping, shape)
        dims = tuple(
            dim_of_entry(entry, size, mesh) for entry, size in zip(dims_mapping, shape, strict=True)
        )
        used = [axis for dim in dims for axis in dim_axes(dim)]
        if twice := sorted({axis for axis in used if used.count(axis) > 1}):
            raise AnnotationError(
                f"dims_mapping {list(dims_mapping)} uses mesh axis {', '.join(twice)} more than"
                " once; an axis can split one dimension of a tensor"
            )
        return cls(mesh, dims).normalized()

    @property
    def shape(self) -> tuple[IntExpr, ...]:
        """The tensor's global shape."""
        return tuple(dim_size(dim) for dim in self.dims)

    @cached_property
    def local_shape(self) -> tuple[IntExpr, ...]:
        """The shape of the piece that a rank holds; entries may depend on its coordinates."""
        return tuple(local_dim_size(dim, self.mesh) for dim in self.dims)

    @property
    def dims_mapping(self) -> tuple[int | tuple[int, ...], ...]:
        """Per dimension: -1, the index of the mesh axis that splits it, or several indexes.

        Sub-dimensions are merged into one entry, so this is for display; `dims` is exact.
        """
        entries: list[int | tuple[int, ...]] = []
        for dim in self.dims:
            axes = tuple(self.mesh.axis_index(axis) for axis in dim_axes(dim))
            entries.append(-1 if not axes else axes[0] if len(axes) == 1 else axes)
        return tuple(entries)

    @property
    def sharded_axes(self) -> tuple[str, ...]:
        """The mesh axes that split a dimension, in the order of the dimensions."""
        return tuple(axis for dim in self.dims for axis in dim_axes(dim))

    @property
    def partial_axes(self) -> tuple[str, ...]:
        """The mesh axes over which a reduction is pending."""
        return tuple(axis for axis, _ in self.partial)

    @property
    def is_replicated(self) -> bool:
        """Whether every process of the mesh holds the tensor's whole value."""
        return not self.sharded_axes and not self.partial and self.mask is None

    def normalized(self) -> Layout:
        """Returns the canonical form; layouts hold the same pieces iff their forms are equal."""
        dims = tuple(normalize_dim(dim, self.mesh) for dim in self.dims)
        pending = {axis: monoid for axis, monoid in self.partial if self.mesh.axis_size(axis) > 1}
        partial = tuple((axis, pending[axis]) for axis in self.mesh.dim_names if axis in pending)
        return replace(self, dims=dims, partial=partial)

    def without_partial(self) -> Layout:
        """Returns the layout after every pending reduction is done."""
        return replace(self, partial=()) if self.partial else self

    def with_partial(self, pending: Mapping[str, str]) -> Layout:
        """Returns the layout with exactly these pending reductions (mesh axis -> monoid)."""
        order = self.mesh.dim_names
        partial = tuple((axis, pending[axis]) for axis in order if axis in pending)
        return self if partial == self.partial else replace(self, partial=partial)

    def onto(self, mesh: ProcessMesh) -> Layout:
        """Returns the complete layout on another slice, split along the axes that both have."""
        known = frozenset(mesh.dim_names)
        dims = tuple(
            tuple(SubDim(sub.size, tuple(a for a in sub.axes if a in known)) for sub in dim)
            for dim in self.dims
        )
        return Layout(mesh, dims).normalized()

    def problems(self, shape: Sequence[IntExpr]) -> list[str]:
        """Returns what is inconsistent about this layout of a tensor of this shape."""
        found: list[str] = []
        if self.shape != tuple(shape):
            found.append(
                f"layout is for shape {shape_str(self.shape)}, the tensor has {shape_str(shape)}"
            )
        used = [*self.sharded_axes, *self.partial_axes]
        for axis in sorted(set(used)):
            if axis not in self.mesh.dim_names:
                found.append(f"mesh has no axis {axis!r}")
            elif used.count(axis) > 1:
                found.append(f"mesh axis {axis!r} is used more than once")
        found.extend(f"unknown reduction {m!r}" for _, m in self.partial if m not in MONOIDS)
        return found

    def __str__(self) -> str:
        dims = ", ".join(dim_str(dim) for dim in self.dims)
        pending = "".join(f" {monoid}@{axis}" for axis, monoid in self.partial)
        fixed = ", ".join(f"{axis}={index}" for axis, index in self.mesh.fixed)
        return f"[{dims}]{pending}" + (f" on {fixed}" if fixed else "")


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


def check_length(dims_mapping: Sequence[ExactMapping], shape: Sequence[IntExpr]) -> None:
    """Checks that a dims_mapping has one entry per dimension.

    Raises:
        AnnotationError: If it hasn't.
    """
    if len(dims_mapping) != len(shape):
        count = "1 entry" if len(dims_mapping) == 1 else f"{len(dims_mapping)} entries"
        raise AnnotationError(
            f"dims_mapping {list(dims_mapping)} has {count}, but the tensor has"
            f" {len(shape)} dimensions {shape_str(shape)}; give one entry per dimension"
        )


def dim_of_entry(entry: ExactMapping, size: IntExpr, mesh: ProcessMesh) -> DimLayout:
    """Returns the layout of a dimension that one entry of a dims_mapping describes.

    Args:
        entry: See `Layout.from_dims_mapping`. Open sizes in it count by their names: those of the
            dimension take their place.
        size: The dimension's global size.
        mesh: The processes.

    Raises:
        AnnotationError: On an unknown axis, or sub-dimensions that don't multiply to the size.
    """
    subs = tuple(sub for sub in entry if isinstance(sub, SubDim)) if _is_dim(entry) else ()
    if not subs:
        return (SubDim(size, _entry_axes(entry, mesh)),)
    for axis in dim_axes(subs):
        mesh.axis_index(axis)
    known = {str(open_size): open_size for open_size in sizes_of(size)}
    subs = tuple(replace(sub, size=substitute(sub.size, known)) for sub in subs)
    if dim_size(subs) != size:
        raise AnnotationError(
            f"the sub-dimensions {dim_str(subs)} multiply to {dim_size(subs)}, but the dimension"
            f" has {size}"
        )
    return subs


def _is_dim(entry: ExactMapping) -> TypeGuard[DimLayout]:
    return isinstance(entry, tuple) and any(isinstance(sub, SubDim) for sub in entry)


def _entry_axes(entry: ExactMapping, mesh: ProcessMesh) -> tuple[str, ...]:
    if entry is None or entry == -1 or entry == ():
        return ()
    items: Iterable[Any] = entry if isinstance(entry, (tuple, list)) else (entry,)
    names = []
    for item in items:
        if not isinstance(item, (int, str)):
            raise AnnotationError(
                f"dims_mapping entry {item}: give per dimension of the tensor None, or a mesh axis"
                " by name or number, or several; not a placement per mesh axis, as DTensors have"
            )
        if isinstance(item, int) and item < -1:
            raise AnnotationError(f"dims_mapping entry {item}: use -1 for 'not split', or an axis")
        names.append(mesh.dim_names[mesh.axis_index(item)])
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Origin:
    """Why a layout was chosen.

    Attributes:
        kind: `annotated` (by the user, never changed), `inherited` (as another program over the
            same storage has it, never changed), `preset` (pinned by a named strategy),
            `implied` (follows from a neighbour through a rule), `chosen` (by cost or search),
            `default` (nothing said otherwise), or `fallback` (no rule: replicated).
        detail: What it follows from: the pin's place, the op, the strategy.
    """

    kind: str
    detail: str = field(default="")

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


ORIGIN_KINDS = ("annotated", "inherited", "preset", "implied", "chosen", "default", "fallback")
