"""What ranks tell of calls: to one another, to make the same ones, and to the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.step.batch import Structure
from autopar.ir.expr.expression import IntExpr
from autopar.parallel.calls import Modes, described
from autopar.parallel.variant import Variant
from autopar.runtime.agree.disagreement import CALL, LOCAL, MODULE
from autopar.runtime.files.digest import digest_bytes

MANY = 16
"""Programs of one module from which on a warning says so."""

KEPT_CALLS = 1024
"""Kinds of calls of which is kept what the ranks compare."""


def key_of(
    modes: Modes,
    call: Structure,
    tensors: Sequence[Tensor],
    shapes: Sequence[Sequence[IntExpr]],
    autocast: torch.dtype | None,
) -> Any:
    """Returns what is the same for calls that one program may be for.

    Args:
        modes: Those that the module is in.
        call: The structure of the call.
        tensors: Its tensors.
        shapes: Their shapes, of which sizes may be open.
        autocast: The dtype of autocast; None if it is off.
    """
    differentiate = torch.is_grad_enabled()
    pairs = zip(tensors, shapes, strict=True)
    return (
        call.spec,
        call.plain,
        tuple((tuple(s), t.dtype, differentiate and t.requires_grad) for t, s in pairs),
        modes.training,
        differentiate and modes.trained,
        autocast,
    )


class Told:
    """What the ranks must say of a call alike, kept for the last kinds of calls."""

    def __init__(self) -> None:
        self._calls: dict[Any, dict[str, str]] = {}

    def of(
        self,
        modes: Modes,
        call: Structure,
        tensors: Sequence[Tensor],
        autocast: torch.dtype | None,
        *,
        local: bool,
    ) -> dict[str, str]:
        """Returns that, by name; see `key_of`.

        Args:
            local: Whether the tensors are parts.
        """
        key = key_of(modes, call, tensors, [each.shape for each in tensors], autocast)
        if (key, local) not in self._calls:
            if len(self._calls) == KEPT_CALLS:
                self._calls.clear()
            trained = [each[2] for each in key[2]]
            self._calls[key, local] = {
                LOCAL: str(local),
                CALL: described(modes, call, tensors, local),
                MODULE: f"{digest_bytes(str((trained, key[3:])).encode()):x}",
            }
        return self._calls[key, local]


def apart_text(refusal: InvalidInputError, variant: Variant) -> str:
    """Returns a warning that calls of other sizes need a program of their own."""
    lines = dict.fromkeys(str(each.loc) for each in variant.captured.narrowed)
    return (
        f"{refusal}; a program is compiled for these sizes, at which the model does something else"
        f" than at those of other calls: {', '.join(lines)}"
    )


def many_text(name: str) -> str:
    """Returns a warning that many programs are compiled."""
    return (
        f"{MANY} programs are compiled for {name}: each shape of a batch and each plain argument"
        " needs its own; leave sizes open with dynamic=, or pad batches to few shapes"
    )
