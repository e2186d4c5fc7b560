"""DTensors put together on all ranks, by the same collectives as programs use.

torch's own `full_tensor` gathers by the op that corrupts the heap on gloo if another one ends at
the same time (see `exchange`).
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from autopar.base.errors import InvalidInputError
from autopar.runtime.collectives.async_collectives import end_gather, start_gather
from autopar.runtime.collectives.groups import Group
from autopar.runtime.ports.boxes import blocks
from autopar.runtime.state.placements import check_ascending

_SUMS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}
"""How pending reductions are carried out; an average is a sum that is divided."""


def whole_of(tensor: DTensor) -> Tensor:
    """Returns a DTensor whole; all ranks of its mesh call alike.

    Raises:
        InvalidInputError: If one of its placements is of a kind of its own, or torch mixes up its
            pieces.
    """
    mesh, found = tensor.device_mesh, tensor.to_local().detach()
    check_ascending(mesh.mesh)
    sizes = [tuple(tensor.shape)]
    for axis, placement in enumerate(tensor.placements):
        _check(placement)
        sizes.append(_block(sizes[-1], placement, mesh, axis))
    for axis in reversed(range(mesh.ndim)):
        placement = tensor.placements[axis]
        if mesh.size(axis) == 1:
            continue
        if isinstance(placement, Shard) and 0 in sizes[axis]:
            found = found.new_empty(sizes[axis])
        elif isinstance(placement, Shard):
            dim, group = placement.dim % tensor.ndim, group_along(mesh, axis)
            size = sizes[axis][dim]
            found = end_gather(start_gather(found, dim, size, group), dim, size, found.dtype, group)
        elif isinstance(placement, Partial):
            found = _reduced(found, placement.reduce_op, mesh, axis)
    return found.reshape(tensor.shape)


def group_along(mesh: DeviceMesh, axis: int) -> Group:
    """Returns the ranks along an axis of a mesh, which ascend, as collectives take them."""
    members, size = mesh.get_group(axis), mesh.size(axis)
    name, position = str(members.group_name), mesh.get_local_rank(axis)
    return Group(name, size, position, tuple(range(size)), dist.get_backend(members))


def _check(placement: object) -> None:
    known = type(placement) in (Shard, Replicate, Partial)
    if not known or (isinstance(placement, Partial) and placement.reduce_op not in _SUMS):
        raise InvalidInputError(
            f"a DTensor is placed as {placement}, which only torch can read; redistribute it to"
            " Shard, Replicate or Partial, or hand over the global tensor"
        )


def _block(
    sizes: tuple[int, ...], placement: object, mesh: DeviceMesh, axis: int
) -> tuple[int, ...]:
    """Returns the sizes of this rank's block of a tensor, which an axis of a mesh splits."""
    if not isinstance(placement, Shard):
        return sizes
    dim = placement.dim % len(sizes)
    _, length = blocks(sizes[dim], mesh.size(axis))[mesh.get_local_rank(axis)]
    return (*sizes[:dim], length, *sizes[dim + 1 :])


def _reduced(x: Tensor, kind: str, mesh: DeviceMesh, axis: int) -> Tensor:
    found = x.contiguous().clone()
    dist.all_reduce(found, _SUMS[kind], mesh.get_group(axis))
    return found / mesh.size(axis) if kind == "avg" else found
