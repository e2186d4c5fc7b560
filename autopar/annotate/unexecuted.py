"""Refuses what a program records, but nothing carries out yet: stages without a pipeline, masks
that are no box of the mesh, or one along the axis of a pipeline, and offloading of what is no
activation and no parameter, or elsewhere than to the host.

The user asked for it. Compiling as if they hadn't would be wrong without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from autopar.annotate.nearest_box import nearest_box
from autopar.base.errors import AnnotationError, Loc
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program, Value


def refuse_unexecuted(program: Program, pipeline: str = "") -> None:
    """Checks that a program asks for nothing that isn't carried out yet.

    Args:
        program: The program.
        pipeline: The mesh axis along which its stages lie; "" if there is none.

    Raises:
        AnnotationError: If it does. Names all such places.
    """
    problems = [*_of_values(program, pipeline), *([] if pipeline else _of_ops(program))]
    if problems:
        raise AnnotationError(
            "\n".join(["the program asks for what isn't carried out yet; remove:", *problems])
        )


def _of_values(program: Program, pipeline: str) -> Iterator[str]:
    for value in program.main.values.values():
        layout = value.dist
        if layout is None:
            continue
        shown = f"%{value.name}"
        if layout.mask is not None:
            yield (
                f"  - {_place(value)}: shard_mask, by which not all processes hold {shown}; or take"
                " the nearest one that is a box of the mesh,"
                f" {_nearest(layout.mesh, layout.mask)}"
            )
        if isinstance(dict(layout.mesh.fixed).get(pipeline), tuple):
            yield (
                f"  - {_place(value)}: {shown} at several indices of {pipeline!r}, the axis of the"
                " pipeline, along which stages lie; or compile without pipeline=, or say with"
                " stages= at how many indices each stage is"
            )
        if layout.offload:
            yield f"  - {_place(value)}: offload of {shown} to {layout.offload}"


def _of_ops(program: Program) -> Iterator[str]:
    first: dict[int, Loc] = {}
    for op in program.main.ops:
        first.setdefault(op.stage, op.loc)
    for stage, loc in sorted(first.items()):
        if stage:
            remedy = "or compile with pipeline= an axis of the mesh"
            yield f"  - {loc}: pipeline_stage({stage}); {remedy}"


def _nearest(mesh: ProcessMesh, mask: Collection[int]) -> str:
    """Returns the box of a mesh that differs least from a mask, as text: a mask and where it is."""
    found = nearest_box(mesh, mask)
    held = set(found.ids)
    bits: list[Any] = [int(process in held) for process in mesh.ids]
    for size in reversed(mesh.shape[1:]):
        bits = [bits[at : at + size] for at in range(0, len(bits), size)]
    return f"{bits} ({found.place})"


def _place(value: Value) -> str:
    return value.origin.detail if value.origin and value.origin.detail else str(value.loc)
