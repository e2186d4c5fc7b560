"""Layouts of parameters as placements of DTensors.

A DTensor splits a whole dimension over one mesh axis, as `torch.chunk` does: into blocks of
ceil(S/n), which are ours. Over several axes it splits block by block, so the blocks are ours only
where they divide evenly and the major axis comes first. Splits within a dimension (heads, the
parts of a fused weight) have no placement that torch.distributed.checkpoint could save.
"""

from __future__ import annotations

from torch.distributed.tensor import Placement, Replicate, Shard

from autopar.ir.layout import DimLayout, Layout, SubDim, dim_axes, dim_size
from autopar.ir.mesh import ProcessMesh


def placements_of(layout: Layout) -> tuple[Placement, ...] | None:
    """Returns the placement per mesh axis that a layout is; None if there is none."""
    if layout.partial or placeable(layout) != layout.normalized():
        return None
    found: dict[str, Placement] = {}
    for at, dim in enumerate(layout.normalized().dims):
        found.update((axis, Shard(at)) for axis in dim_axes(dim))
    return tuple(found.get(axis, Replicate()) for axis in layout.mesh.dim_names)


def is_split(layout: Layout) -> bool:
    """Whether a layout splits any dimension."""
    return any(dim_axes(dim) for dim in layout.normalized().dims)


def placeable(layout: Layout) -> Layout:
    """Returns a layout with placements that splits the same dimensions, as far as there is one."""
    mesh = layout.mesh
    dims = tuple(_placeable(dim, mesh) for dim in layout.normalized().dims)
    return Layout(mesh, dims).normalized()


def _placeable(dim: DimLayout, mesh: ProcessMesh) -> DimLayout:
    size = dim_size(dim)
    axes: tuple[str, ...] = ()
    for axis in sorted(dim_axes(dim), key=mesh.axis_index):
        if not axes or size % mesh.axes_size((*axes, axis)) == 0 == size % mesh.axes_size(axes):
            axes = (*axes, axis)
    return (SubDim(size, axes),)
