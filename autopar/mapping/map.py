"""Map: collectives over mesh axes become collectives in named process groups of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from autopar.cost.cluster import Cluster
from autopar.ir.collectives import is_collective
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Op, Program
from autopar.mapping.groups import GroupKey
from autopar.mapping.placement import Placement, resolve
from autopar.mapping.traffic import traffic


@dataclass(frozen=True)
class Map:
    """Names the process group of every collective, and places the processes on ranks.

    Attributes:
        cluster: The devices and links.
        placement: `identity`: the processes in ascending order. `auto`: the mesh axes are nested
            so that communication takes the least predicted time. Or the process id of each rank,
            as a tuple, as a text such as `0,2,1,3`, or as the path of a file.
    """

    name: ClassVar[str] = "map"
    cluster: Cluster
    placement: Placement = "identity"

    def __call__(self, program: Program) -> Program:
        """Returns the program with `group` instead of `axes` in every collective."""
        mesh = mesh_of(program)
        functions = {
            name: _with_groups(function, mesh) for name, function in program.functions.items()
        }
        return replace(program, functions=functions)

    def processes(self, program: Program) -> tuple[int, ...]:
        """Returns the process id that each rank carries out.

        Args:
            program: The partitioned program, its collectives still over axes.

        Raises:
            InvalidInputError: If the placement can't be read or doesn't fit the mesh.
        """
        mesh = mesh_of(program)
        volume = traffic(program, mesh) if self.placement == "auto" else ()
        return resolve(self.placement, mesh, self.cluster, volume)


def mesh_of(program: Program) -> ProcessMesh:
    """Returns the mesh of a partitioned program.

    Raises:
        ValueError: If it has none: it was not partitioned, or is stripped already.
    """
    if program.mesh is None:
        raise ValueError(f"{program.level} program {program.name!r} has no mesh to map")
    return program.mesh


def _with_groups(function: Function, mesh: ProcessMesh) -> Function:
    return replace(function, ops=tuple(_with_group(op, mesh) for op in function.ops))


def _with_group(op: Op, mesh: ProcessMesh) -> Op:
    axes = op.arg("axes")
    if not is_collective(op.kind) or not isinstance(axes, tuple):
        return op
    name = GroupKey.of(op).name(mesh)
    args = tuple(
        ("group", name) if key == "axes" else (key, arg) for key, arg in op.args if key != "among"
    )
    return replace(op, args=args)
