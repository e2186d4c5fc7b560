"""Mesh shape: the mesh for a number of devices on which the fastest plan is the fastest.

Each way to arrange the devices along one or two axes, the outer one along the slower links, is
searched. More axes give more plans to choose from, but hardly a faster one: what two of them split
alike, one does as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autopar.annotate import apply_mesh
from autopar.completion import Complete
from autopar.ir.errors import InvalidInputError
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program


@dataclass(frozen=True)
class Shape:
    """A mesh, and the predicted serialized seconds of its fastest known plan."""

    mesh: ProcessMesh
    seconds: float


def mesh_shapes(devices: int) -> Iterator[ProcessMesh]:
    """Yields the meshes of as many processes with one axis or two.

    Raises:
        InvalidInputError: If there are none.
    """
    if devices < 1:
        raise InvalidInputError(f"{devices} devices: a mesh needs at least one")
    yield ProcessMesh.of_shape((devices,))
    for outer in range(2, devices // 2 + 1):
        if devices % outer == 0:
            yield ProcessMesh.of_shape((outer, devices // outer))


def fastest_shapes(program: Program, devices: int, complete: Complete) -> list[Shape]:
    """Returns the shapes of a mesh, the fastest first.

    Args:
        program: The serial program, without a mesh.
        devices: How many there are.
        complete: Searches on one mesh.

    Raises:
        InvalidInputError: If there are no devices.
    """
    found = []
    for mesh in mesh_shapes(devices):
        # What is known of reshards is about one mesh.
        search = replace(complete, planner=None)
        seconds = search.decide(apply_mesh(program, mesh)).seconds
        found.append(Shape(mesh, seconds))
    return sorted(found, key=lambda shape: (shape.seconds, shape.mesh.ndim))
