"""What users say of how many indices of a pipeline's axis its stages have."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.ir.fixed import indices_of
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function
from autopar.partition.pipeline.runs import Widths

Stages = Sequence[int] | str | None
"""At how many indices each is: a sequence, or `3,1` as on the command line; None: at one each."""

AUTO_WIDTHS = "auto"
"""In the place of numbers: with those a step is predicted to take the least time."""


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
    widths = () if stages == AUTO_WIDTHS else _widths(stages)
    if not axis:
        raise AnnotationError(
            f"stages={stages!r} is for a pipeline; say along which axis, as pipeline='pp'"
        )
    if not widths:
        return ()
    size = mesh.axis_size(axis)
    if sum(widths) != size:
        raise AnnotationError(
            f"stages={stages!r}: {' + '.join(map(str, widths))} are {sum(widths)} indices, but axis"
            f" {axis!r} of {mesh} has {size}; give widths that add up to {size}"
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
    try:
        widths = tuple(int(each) if isinstance(each, str) else each for each in entries)
    except (TypeError, ValueError):
        widths = ()
    if not widths or any(type(each) is not int or each < 1 for each in widths):
        raise InvalidInputError(
            f"stages={stages!r}: give how many indices of the pipeline's axis each stage gets, 1 or"
            " more, as (3, 1), or 'auto' for the fastest"
        )
    return widths
