"""The presets that tests name where they aren't about strategies, but about what is split."""

from __future__ import annotations

from autopar.ir.mesh import ProcessMesh


def data_and_tensor(mesh: ProcessMesh) -> str:
    """Returns presets that split the batch over the first axis, and weights over the others."""
    first, *others = mesh.dim_names
    return ",".join([f"data:{first}", *(f"tensor:{axis}" for axis in others)])
