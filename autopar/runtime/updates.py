"""What a run that writes new content in place is given (see `autopar.ir.updates`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


class Abandoned(BaseException):
    """A guard ended a run before anything was overwritten.

    Not an `Exception`: no rank failed, so it passes all that makes messages of failures.
    """


@dataclass(frozen=True)
class InPlace:
    """That new content is written in place, and what is looked at before.

    Attributes:
        guard: Called with the first output before anything is overwritten, as a training step's
            loss; None if nobody looks. If it raises `Abandoned`, the stored inputs are what they
            were.
    """

    guard: Callable[[Tensor], None] | None = None
