"""Layouts: which piece of a tensor each process holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.base.errors import AnnotationError
from autopar.ir.dims import (
    DimLayout,
    SubDim,
    dim_axes,
    dim_size,
    dim_str,
    local_dim_size,
    normalize_dim,
    whole,
)
from autopar.ir.dims_mapping import ExactMapping, check_length, dim_of_entry
from autopar.ir.expr.expression import (
    IntExpr,
    shape_str,
)
from autopar.ir.mesh import ProcessMesh

MONOIDS = ("sum", "max", "min", "prod", "any", "all")


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

    def stacked(self, number: int) -> Layout:
        """Returns the layout of so many tensors of this one, along a new first dimension."""
        return replace(self, dims=(whole(number), *self.dims)).normalized()

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
        """Returns the complete layout on another slice, split along the axes that both have.

        Of an axis both may have different runs; then it isn't the same one.
        """
        runs = self.mesh.runs
        known = frozenset(a for a in mesh.dim_names if mesh.runs.get(a) == runs.get(a))
        return self._along(known, mesh)

    def named_on(self, mesh: ProcessMesh) -> Layout:
        """Returns the complete layout on another slice, split along axes of the same names."""
        return self._along(frozenset(mesh.dim_names), mesh)

    def _along(self, known: frozenset[str], mesh: ProcessMesh) -> Layout:
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
        place = self.mesh.place
        return f"[{dims}]{pending}" + (f" on {place}" if place else "")


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
