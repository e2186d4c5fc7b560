"""Stages: from what the user put into stages to the stage of every op of a pipeline."""

from __future__ import annotations

from dataclasses import replace

from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.ir.stages import Stages, has_stages
from autopar.ir.sums import sums_apart


def apply_stages(program: Program, axis: str, groups: int = 0) -> Program:
    """Returns a program whose ops are in the stages of a pipeline, but for updates.

    Those run where their parameters are.

    Args:
        program: A serial program with a mesh.
        axis: The mesh axis along which stages lie; "" for no pipeline: then nothing changes.
        groups: On how many different processes stages run, if not at each index of it.

    Raises:
        AnnotationError: If the mesh has no such axis, or nothing is in a stage behind the first
            one though there are processes for it.
    """
    if not axis:
        return program
    mesh = program.mesh
    assert mesh is not None
    check_axis(mesh, axis)
    main = program.main
    wanted = groups or mesh.axis_size(axis)
    if wanted > 1 and not has_stages(main):
        raise AnnotationError(
            f"pipeline={axis!r}: the model has too few ops to be cut into {wanted}"
            " stages; choose a mesh on which that axis is smaller"
        )
    stages = Stages(main).found
    ops = tuple(replace(op, stage=stages.get(op.results, 0)) for op in main.ops)
    return program.with_main(sums_apart(replace(main, ops=ops)))


def check_axis(mesh: ProcessMesh, axis: str) -> None:
    """Refuses a pipeline along an axis that the mesh doesn't have.

    Raises:
        AnnotationError: If it has none of that name.
    """
    known = mesh.dim_names
    if axis not in known:
        raise AnnotationError(
            f"pipeline={axis!r}: the mesh has no such axis{near_misses(axis, known)}; its axes are"
            f" {', '.join(known)}"
        )
