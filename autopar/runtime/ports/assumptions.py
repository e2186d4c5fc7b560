"""Compares what a run finds with what its program assumes, before anything is overwritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.assumptions import Assumption
from autopar.runtime.execute.updates import Abandoned, Guard


def looking(assumptions: Sequence[Assumption], guard: Guard | None) -> Callable[..., None]:
    """Returns what a program calls with its first output and the scalars that it assumes.

    Args:
        assumptions: What the scalars must be.
        guard: What looks further; without one, a wrong assumption ends the run by `Abandoned`.
    """

    def look(first: Tensor, *scalars: Tensor) -> None:
        refusal = _refusal(assumptions, scalars)
        if guard is not None:
            guard(first, refusal)
        elif refusal is not None:
            raise Abandoned(refusal)

    return look


def _refusal(
    assumptions: Sequence[Assumption], scalars: Sequence[Tensor]
) -> InvalidInputError | None:
    for each, scalar in zip(assumptions, scalars, strict=True):
        if not each.holds(found := scalar.item()):
            return InvalidInputError(each.refusal(found))
    return None
