"""Floating-point weights of another width than the program's: converted when they are read.

So do `load_state_dict` of torch and `from_pretrained(dtype=...)` of transformers.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.dtypes import FLOATS
from autopar.runtime.kernels.table import TORCH_DTYPES

# Not those of 8 bits: what they stand for depends on scales, which are tensors of their own.
_FLOATS = tuple(TORCH_DTYPES[name] for name in FLOATS)


def is_convertible(stored: torch.dtype, wanted: torch.dtype) -> bool:
    """Returns whether weights that are stored so can be used as a program wants them."""
    return stored == wanted or (stored in _FLOATS and wanted in _FLOATS)


def converted(piece: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """Returns a weight, or a piece of one, as the program wants it.

    Args:
        piece: The weight; rounded if it has more digits than the program, with a warning.
        dtype: What the program wants.
        what: The weight, for errors.

    Raises:
        InvalidInputError: If a number is too large.
    """
    if piece.dtype == dtype:
        return piece
    found = piece.to(dtype)
    if torch.promote_types(piece.dtype, dtype) == dtype:
        return found
    stored, wanted = (str(each).removeprefix("torch.") for each in (piece.dtype, dtype))
    if not torch.equal(found.isfinite(), piece.isfinite()):
        raise InvalidInputError(
            f"{what} is {stored} and has numbers that are too large for {wanted}, which the program"
            " expects; compile the model with wider parameters, as model.to(torch.bfloat16)"
        )
    warnings.warn(
        f"weights are {stored} in the file and rounded to {wanted}, which the program expects",
        stacklevel=2,
    )
    return found
