"""Flags that code makes of open sizes, as `is_causal = length > 1 and mask is None`.

Where the first is false, Python's `and` returns the comparison itself, which attention refuses
before any mode sees the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@contextmanager
def decided_flags() -> Iterator[None]:
    """Lets attention take comparisons of sizes as flags: they are decided when it is called."""
    own = F.scaled_dot_product_attention

    def attention(*args: Any, **kwargs: Any) -> Tensor:
        return own(*map(_flag, args), **{name: _flag(each) for name, each in kwargs.items()})

    F.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = own


def _flag(argument: Any) -> Any:
    return bool(argument) if isinstance(argument, torch.SymBool) else argument
