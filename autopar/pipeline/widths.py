"""What users say of how many indices of a pipeline's axis its stages have."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.base.arguments import COUNT, shown
from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.ir.fixed import indices_of
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function
from autopar.partition.pipeline.runs import Widths

Stages = Sequence[int] | str | None
"""At how many indices each is: a sequence, or `3,1` as on the command line; None: at one each."""

AUTO_WIDTHS = "auto"
"""In the place of numbers: with those a step is predicted to take the least time."""


def is_auto(stages: Stages) -> bool:
    """Returns whether the widths of stages are searched."""
    return isinstance(stages, str) and stages == AUTO_WIDTHS


def checked_widths(stages: Stages, mesh: ProcessMesh, axis: str) -> Widths:
    """Returns how many indices of the pipeline's axis each run has; none: one each.

    Args:
        stages: What the user said.
        mesh: The mesh.
        axis: The axis of the pipeline; "" if there is none.

    Raises:
        InvalidInputError: If it can't be understood.
        AnnotationError: If there is no pipeline, or they aren't as many as the axis has.
    """
    if stages is None:
        return ()
    widths = () if is_auto(stages) else _widths(stages)
    if not axis:
        raise AnnotationError(
            f"stages={shown(stages)} is for a pipeline; say along which axis, as pipeline='pp'"
        )
    if not widths:
        return ()
    size = mesh.axis_size(axis)
    if sum(widths) != size:
        total = " + ".join(map(str, widths))
        raise AnnotationError(
            f"stages={shown(stages)}: {total} are {sum(widths)} indices, but axis {axis!r} of"
            f" {mesh} has {size}; give widths that add up to {size}"
        )
    return () if set(widths) == {1} else widths


def widths_of(completed: Function, mesh: ProcessMesh, axis: str) -> Widths:
    """Returns how many indices of the pipeline's axis stages have that are completed.

    Args:
        completed: The completed program.
        mesh: The whole mesh.
        axis: The axis of the pipeline.
    """
    ops = (op for op in completed.ops if op.phase == "forward" and op.dist is not None)
    fixed = {dict(op.dist.mesh.fixed).get(axis) for op in ops if op.dist is not None}
    runs = sorted((indices_of(each) for each in fixed if each is not None), key=min)
    widths = tuple(map(len, runs))
    return widths if sum(widths) == mesh.axis_size(axis) and set(widths) != {1} else ()


def _widths(stages: Sequence[int] | str) -> Widths:
    entries = stages.split(",") if isinstance(stages, str) else stages
    widths: list[int] = []
    for each in entries if isinstance(entries, (list, tuple)) else ():
        if isinstance(each, str):
            widths.append(int(each) if each.strip().isdecimal() else 0)
        else:
            widths.append(int(each) if COUNT.fits(each) else 0)
    if not widths or min(widths) < 1:
        raise InvalidInputError(
            f"stages={shown(stages)}: give how many indices of the pipeline's axis each stage gets,"
            " 1 or more, as (3, 1), or 'auto' for the fastest"
        )
    return tuple(widths)
