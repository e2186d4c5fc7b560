"""Refusals: why a model can't be traced or recorded, and the user's line that is to blame."""

from __future__ import annotations

import traceback

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.origin import HANDLERS, is_user_code

DEPENDENT = (
    GuardOnDataDependentSymNode,
    DataDependentOutputException,
    DynamicOutputShapeException,
)
"""What torch raises where values of tensors decide which ops there are, or their shapes."""

DEPENDS = (
    "what this line does depends on the values of a tensor, which decide about a shape or aren't"
    " known here (on the meta device, or of gradients), so it has no static program; use"
    " torch.where or masks, or hand over a model with its values"
)


class Untraceable(InvalidInputError):
    """Code fails where it is traced, or depends on values that aren't known there."""


def user_line(error: BaseException) -> str:
    """Returns the innermost line of the user's code that an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    calls = [frame for frame in frames if frame.name not in HANDLERS]
    own = [frame for frame in calls if is_user_code(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "the model"
