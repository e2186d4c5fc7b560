"""Texts of numbers, as `f"expert_{index}"`, which ask for the value of a tensor as `.item()` does.

Torch formats a tensor without dimensions as its value, but one that stands for another while it is
traced as what it is. Which text code makes of it is assumed, as other values are that it asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class FormattedNumbers(TorchFunctionMode):
    """Formats the values of tensors that have no dimensions."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.__format__ and args[0].dim() == 0:
            return format(args[0].item(), *args[1:])
        return func(*args, **(kwargs or {}))
