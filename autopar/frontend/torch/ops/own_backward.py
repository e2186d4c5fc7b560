"""Gradients that code makes itself, as an `autograd.Function` does and a hook of a tensor.

What comes back to rows that aren't there must be zero, and so must what comes back to parts that
are skipped, as it is in torch's own backward passes. Of others nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd import Function

from autopar.frontend.torch.rows.picks import Done, Picks
from autopar.frontend.torch.rows.selections import Selected


@contextmanager
def checked_functions(selected: Selected) -> Iterator[None]:
    """Keeps rows that data select, and parts that they skip, from `autograd.Function`s within.

    Args:
        selected: What is known of rows.
    """
    apply: Any = vars(Function)["apply"]

    def checked(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        _refuse(selected, *args, *kwargs.values())
        return apply.__func__(cls, *args, **kwargs)

    Function.apply = classmethod(checked)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Function.apply = apply  # type: ignore[method-assign]


def hook(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `x.register_hook`."""
    _refuse(picks.selected, args[0])
    return False, None


def _refuse(selected: Selected, *given: Any) -> None:
    for each in given:
        if (rows := selected.rows(each)) is not None:
            selected.refuse(rows.selection.place)
    if selected.open and any(isinstance(each, Tensor) for each in given):
        selected.refuse(selected.open[-1].place)
