"""Pieces of tensors as DTensors: which layouts are placements, and on which mesh.

A DTensor splits a whole dimension over one mesh axis, as `torch.chunk` does: into blocks of
ceil(S/n), which are ours. Over several axes it splits block by block, so the blocks are ours only
where they divide evenly and the major axis comes first. Splits within a dimension (heads, the
parts of a fused weight) have no placement that torch.distributed.checkpoint could save.

What lies on a part of the mesh is a DTensor on a mesh of that part's ranks; others hold nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from autopar.base.errors import InvalidInputError
from autopar.ir.deployment import Deployment
from autopar.ir.dims import DimLayout, SubDim, dim_axes, dim_size
from autopar.ir.expr.facts import divides
from autopar.ir.fixed import indices_of
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh


def placements_of(layout: Layout) -> tuple[Placement, ...] | None:
    """Returns the placement per axis of torch's mesh that a layout is; None if there is none."""
    if layout.partial or placeable(layout) != layout.normalized():
        return None
    found: dict[str, Placement] = {}
    for at, dim in enumerate(layout.normalized().dims):
        found.update((axis, Shard(at)) for axis in dim_axes(dim))
    return tuple(found.get(axis, Replicate()) for axis in axes_of(layout.mesh))


def axes_of(mesh: ProcessMesh) -> dict[str, int]:
    """Returns the sizes of the axes that a mesh of torch's has for a mesh or a part of one.

    A box has as many entries as indices along its axes. A mesh of torch's has an axis at least.
    """
    fixed = {axis: len(indices_of(index)) for axis, index in mesh.fixed}
    sizes = {**mesh.root.axis_sizes(), **fixed} if fixed else dict(mesh.axis_sizes())
    kept = {axis: size for axis, size in sizes.items() if fixed.get(axis) != 1}
    return kept or dict(list(sizes.items())[-1:])


def device_mesh_of(deployment: Deployment, mesh: ProcessMesh, device: str) -> DeviceMesh:
    """Returns a mesh of torch's with the processes as placed; all ranks call alike.

    Args:
        deployment: Which rank carries out which process.
        mesh: The mesh of the program, or a part of it.
        device: The type of the devices, as `cpu`.
    """
    return DeviceMesh(device, ranks_of(deployment, mesh), mesh_dim_names=tuple(axes_of(mesh)))


def ranks_of(deployment: Deployment, mesh: ProcessMesh) -> Tensor:
    """Returns the ranks that carry out the processes of a mesh, in the shape of `axes_of`."""
    rank_of = {entry.process_id: rank for rank, entry in enumerate(deployment.ranks)}
    shape = tuple(axes_of(mesh).values())
    return torch.tensor([rank_of[process] for process in mesh.ids]).reshape(shape)


def check_ascending(ranks: Tensor) -> None:
    """Refuses a mesh of ranks on which torch's DTensors aren't what their placements say.

    torch moves pieces along an axis in the order of ranks, and counts them in that of the mesh.

    Raises:
        InvalidInputError: If ranks don't ascend along each axis.
    """
    if any(bool((ranks.diff(dim=axis) <= 0).any()) for axis in range(ranks.ndim)):
        raise InvalidInputError(
            f"on a mesh of the ranks {ranks.tolist()} torch mixes up the pieces of DTensors,"
            " as in full_tensor(): along each axis ranks must ascend; give another placement= or"
            " mesh=, or with parallelize() parameters='local' and global outputs"
        )


def as_dtensor(
    piece: Tensor, shape: tuple[int, ...], mesh: DeviceMesh, placements: tuple[Placement, ...]
) -> DTensor:
    """Returns a rank's piece of a tensor of this shape as a DTensor, over the same memory."""
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        piece, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


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
        if not axes or divides(mesh.axes_size((*axes, axis)), size):
            axes = (*axes, axis)
    return (SubDim(size, axes),)
