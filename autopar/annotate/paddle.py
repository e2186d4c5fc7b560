"""The spellings of Paddle's first annotation interface, for models that are brought over.

Thin: each is one call of what the project calls it. `docs/migration.md` lists all of them, and the
few that have another way of saying it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from autopar.annotate import call, mark
from autopar.annotate.mesh import MeshLike
from autopar.ir import mesh as process_mesh
from autopar.ir.dims_mapping import DimMapping


def ProcessMesh(
    mesh: Any, parent: process_mesh.ProcessMesh | None = None
) -> process_mesh.ProcessMesh:
    """Returns a mesh with unnamed axes; see `autopar.ProcessMesh`."""
    return process_mesh.ProcessMesh(mesh, parent=parent)


def shard_tensor(x: Tensor, mesh: MeshLike, dim_mapping: Sequence[int]) -> Tensor:
    """Marks a tensor with its layout; see `annotate.shard`."""
    return mark.shard(x, mesh, dim_mapping)


def set_shard_mask(x: Tensor, mask: Any) -> Tensor:
    """Marks a tensor with the processes that hold it; see `annotate.shard_mask`."""
    return mark.shard_mask(x, mask)


def set_offload_device(x: Tensor, device: str) -> Tensor:
    """Marks a tensor with the memory that holds it; see `annotate.offload`."""
    return mark.offload(x, device)


def shard_op(
    op_fn: Callable[..., Any],
    mesh: MeshLike,
    dim_mapping_dict: Mapping[str, Sequence[int]] | None,
    **kwargs: Any,
) -> list[Any]:
    """Calls a function with marked operands, and returns the list of its results.

    Torch's tensors have no names, so the operands go by the names of the arguments; see
    `annotate.shard_op`.
    """
    wanted: dict[call.Key, Sequence[DimMapping]] = dict((dim_mapping_dict or {}).items())
    results = call.shard_op(op_fn, mesh, wanted)(**kwargs)
    return list(results) if isinstance(results, (list, tuple)) else [results]
