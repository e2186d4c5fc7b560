"""What kernels of the CPU return where torch's own formulas for fake tensors say something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def grouped_mm(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, *rest: Any, **named: Any
) -> Tensor:
    """Returns what aten._grouped_mm leaves: torch's formula knows bfloat16 only."""
    groups = [offs.shape[0]] if offs is not None and self.dim() == mat2.dim() == 2 else []
    batch = [self.shape[0]] if self.dim() == mat2.dim() == 3 else groups
    return self.new_empty([*batch, self.shape[-2], mat2.shape[-1]])


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None, *rest: Any, **named: Any
) -> Any:
    """Returns what aten.native_layer_norm leaves: statistics have the dtype of its weight."""
    found = torch.ops.aten.native_layer_norm.default(input, normalized_shape, weight, *rest)
    if weight is None or weight.dtype == found[1].dtype:
        return found
    return (found[0], *(each.new_empty(each.shape, dtype=weight.dtype) for each in found[1:]))


STAND_INS: Mapping[str, Callable[..., Any]] = {
    "aten::_grouped_mm": grouped_mm,
    "aten::native_layer_norm": layer_norm,
}
"""By the name of a schema."""
