"""Pipelines whose loss is outside of the program: which schedules they can have."""

from __future__ import annotations

from autopar.base.errors import InvalidInputError
from autopar.partition.pipeline.schedules import AUTO_SCHEDULE, SCHEDULES


def check_loss_outside(schedule: str) -> None:
    """Refuses schedules that need the loss before all forward passes are done.

    What is no schedule at all is left to `CompileOptions.in_stages`.

    Raises:
        InvalidInputError: If it is one of these.
    """
    known = SCHEDULES.get(schedule) if isinstance(schedule, str) else None
    if schedule == AUTO_SCHEDULE or (known is not None and not known.apart):
        able = " or ".join(repr(name) for name, each in SCHEDULES.items() if each.apart)
        raise InvalidInputError(
            f"schedule={schedule!r}: a backward pass would begin before all forward passes are"
            " done, but the loss of a parallel module is yours, and made of the outputs of the"
            f" whole batch; give schedule={able}, or compile the whole step with"
            " autopar.compile(..., loss=, optimizer=), which has all schedules"
        )
