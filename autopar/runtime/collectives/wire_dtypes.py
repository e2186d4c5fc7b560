"""As what elements travel: not every backend moves every dtype.

What is only moved travels as a dtype of the same size that every backend moves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autopar.ir.collectives import PLAIN_DTYPES
from autopar.runtime.kernels.table import TORCH_DTYPES

PLAIN = frozenset(TORCH_DTYPES[name] for name in PLAIN_DTYPES)
"""Dtypes that every backend takes as they are."""

_CARRIERS = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}


def carried(x: Tensor) -> Tensor:
    """Returns the same bytes as a dtype that every backend moves; complex ones get a dimension."""
    if x.dtype in PLAIN:
        return x.contiguous()
    if x.is_complex():
        return torch.view_as_real(x.contiguous())
    return x.contiguous().view(_CARRIERS[x.dtype.itemsize])


def restored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns what `carried` returned as elements of their own dtype again."""
    if dtype.is_complex:
        return torch.view_as_complex(x.contiguous())
    return x if x.dtype == dtype else x.contiguous().view(dtype)
