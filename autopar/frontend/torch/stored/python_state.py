"""Refuses models whose plain attributes change in `forward`, as a counter of calls does.

A program has the value that an attribute had while it was traced, and would go on with it in all
steps. Tracing runs `forward` several times, so what changes from run to run shows. What a run only
notes, as the length of its inputs, is the same after each of them, and does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import nn

from autopar.base.errors import InvalidInputError

Attributes = Mapping[tuple[str, str], bool | int | float]
"""Values of plain attributes, by module and name."""


def plain_attributes(model: nn.Module) -> Attributes:
    """Returns the numbers and flags that a module and those within it have as attributes.

    Their mode isn't among them: modules that set it themselves set it to the same in each run.
    """
    return {
        (module, name): value
        for module, owner in model.named_modules()
        for name, value in {**vars(type(owner)), **vars(owner)}.items()
        if isinstance(value, (bool, int, float)) and name != "training"
    }


def refuse_changes(model: nn.Module, seen: Sequence[Attributes]) -> None:
    """Refuses a model that follows its own plain attributes.

    Args:
        model: The module.
        seen: Its plain attributes before `forward` ran, and after each run.

    Raises:
        InvalidInputError: If a flag changed, or a number did from one run to the next.
    """
    for at, (before, after) in enumerate(pairwise(seen)):
        for (module, name), value in after.items():
            known = before.get((module, name), value)
            first = at == 0 and len(seen) > 2
            if known is value or known == value or (first and not isinstance(value, bool)):
                continue
            owner = f"{module} ({type(model.get_submodule(module)).__name__})" if module else ""
            raise InvalidInputError(
                f"{owner or type(model).__name__} changes its attribute {name!r} in forward, from"
                f" {known} to {value}; a program can't follow Python state: make it a buffer"
                " (register_buffer), and change it in place"
            )
