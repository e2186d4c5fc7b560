"""The gate of a step: what must have turned out right before anything is overwritten."""

from __future__ import annotations

import math

from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.runtime.agree.agreement import Pending
from autopar.runtime.execute.updates import Abandoned, InPlace


class Gate:
    """Looks at a step before it overwrites anything.

    Args:
        check_loss: Whether a loss must be finite.
        later: Whether the device judges, and the host learns of it later.

    Attributes:
        pending: Whether the ranks were given the same, if that isn't known yet.
        in_place: That the gate is looked at.
    """

    def __init__(self, check_loss: bool = True, *, later: bool = False) -> None:
        self.check_loss = check_loss
        self.later = later
        self.pending: Pending | None = None
        self.in_place = InPlace(held=check_loss) if later else InPlace(self._look)

    @property
    def said(self) -> str:
        """What must be the same on all ranks."""
        return f"{self.check_loss}{', later' if self.later else ''}"

    def _look(self, loss: Tensor, broken: InvalidInputError | None) -> None:
        """Ends the run by `Abandoned`, with why as its argument."""
        if (refusal := self._refusal() or broken) is not None:
            raise Abandoned(refusal)
        if self.check_loss and not math.isfinite(found := loss.item()):
            raise Abandoned(found)

    def _refusal(self) -> Exception | None:
        pending, self.pending = self.pending, None
        if pending is None:
            return None
        try:
            return pending.settle()
        except Exception as error:
            # No op of the program failed, so it is raised where none is looked for.
            return error
