"""Texts of numbers, as `f"expert_{index}"`, which ask for the value of a tensor as `.item()` does.

Torch formats a tensor without dimensions as its value, but one that stands for another while it is
traced as what it is. Which text code makes of it is assumed, as other values are that it asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def _rewritten(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Formats the value of a tensor that has no dimensions."""
    return format(args[0].item(), *args[1:]) if args[0].dim() == 0 else NotImplemented


REWRITES = {Tensor.__format__: _rewritten}
