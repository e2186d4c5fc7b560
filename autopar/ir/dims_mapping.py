"""How users write layouts down: an entry per dimension, a dims_mapping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from autopar.base.errors import AnnotationError
from autopar.ir.dims import DimLayout, SubDim, dim_axes, dim_size, dim_str
from autopar.ir.expr.expression import (
    IntExpr,
    shape_str,
    sizes_of,
    substitute,
)
from autopar.ir.mesh import ProcessMesh

DimMapping = int | str | None | tuple[int | str, ...] | Sequence[int | str]
"""How users write one entry of a dims_mapping: -1 or None, an axis, or several axes."""

ExactMapping = DimMapping | DimLayout
"""The same, or the sub-dimensions themselves, as plans have them."""


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
