"""Plain tensors: with values, in rows. What torch has besides, no program takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autopar.base.arguments import shown
from autopar.base.errors import InvalidInputError


def odd_kind(value: Any, absent: bool = False) -> str:
    """Returns what a tensor is that has no plain memory, and what to do; "" for all others.

    So is a list of rows that differ in length.

    Args:
        value: Maybe a tensor.
        absent: Whether it may be without values, as an example is.
    """
    if not isinstance(value, Tensor):
        return _odd_list(value)
    if value.is_nested:
        return "a nested tensor; pad it, as torch.nested.to_padded_tensor does"
    if value.is_meta and not absent:
        return "on the meta device and has no values; give a tensor with values"
    if value.is_quantized:
        return "a quantized tensor; give dequantize() of it"
    if value.layout is not torch.strided:
        kind = str(value.layout).removeprefix("torch.")
        return f"a tensor of the layout {kind}; give to_dense() of it"
    return ""


def _odd_list(value: Any) -> str:
    """Returns what a list is that no tensor can be made of; "" for all others."""
    try:
        if isinstance(value, (list, tuple)):
            np.shape(value)
    except ValueError:
        return f"a list in which rows differ in length, {shown(value)}; pad them to one length"
    return ""


def check_dense(given: Mapping[str, Any]) -> None:
    """Refuses tensors that have no plain memory.

    Args:
        given: Tensors by label.

    Raises:
        InvalidInputError: If there are any. Names all.
    """
    kinds = {label: odd_kind(each) for label, each in given.items()}
    odd = [f"input {label!r} is {kind}" for label, kind in kinds.items() if kind]
    if odd:
        raise InvalidInputError("; ".join(odd))
