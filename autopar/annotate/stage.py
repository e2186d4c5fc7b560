"""`pipeline_stage`: puts a part of a model into a stage of a pipeline."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch.fx.traceback import annotate

from autopar.annotate.notes import noted
from autopar.base.errors import AnnotationError
from autopar.ir.mark import STAGE


def pipeline_stage(stage: int) -> AbstractContextManager[object]:
    """Returns a context manager that puts what is computed within into a stage; a decorator too.

        with pipeline_stage(1):
            x = self.upper(x)

    Recorded in the program, as `Op.stage`. `autopar.compile(..., pipeline="pp")` runs stages along
    an axis of the mesh, and microbatches pass from one to the next.

    Args:
        stage: The number of the stage, from 0 on. What is in none is in the stage of what it
            reads, and so is what is in a stage before that.

    Raises:
        AnnotationError: If the number is no integer >= 0.
    """
    if not isinstance(stage, int) or stage < 0:
        raise AnnotationError(f"pipeline_stage({stage!r}): stages are numbered from 0 on")
    if torch.compiler.is_dynamo_compiling():
        marked: AbstractContextManager[object] = annotate({STAGE: stage})
        return marked
    return noted(STAGE, stage)
