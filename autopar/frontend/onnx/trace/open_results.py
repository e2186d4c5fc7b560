"""Results of slices and resizes of open sizes, whose shapes torch doesn't find.

Other ops that are common are in `shapes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.lower.open_sizes import is_static
from autopar.frontend.lower.symbols import SymSize

aten = torch.ops.aten


def open_result(func: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """Returns a fake tensor of the shape of an op's result.

    Args:
        func: The op.
        args: Its arguments by position.

    Returns:
        None if no size is open, or torch is to find the result itself.
    """
    find = _RESULTS.get(func)
    return None if find is None or not any(map(_is_open, args)) else find(*args)


def _is_open(argument: Any) -> bool:
    if isinstance(argument, torch.Tensor):
        return not is_static(argument)
    if isinstance(argument, (list, tuple)):
        return any(map(_is_open, argument))
    return isinstance(argument, torch.SymInt)


def _sliced(
    tensor: torch.Tensor,
    dim: int = 0,
    start: SymSize | None = None,
    end: SymSize | None = None,
    step: int = 1,
) -> torch.Tensor | None:
    """Returns None if the bounds aren't known to be within the dimension, and in order."""
    size = tensor.shape[dim]
    first, last = 0 if start is None else start, size if end is None else end
    if is_sure(last >= size):
        last = size
    if not (is_sure(first >= 0) and is_sure(first <= last) and is_sure(last <= size)):
        return None
    shape, strides = list(tensor.shape), list(tensor.stride())
    shape[dim], strides[dim] = (last - first + step - 1) // step, strides[dim] * step
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)


def _resized(tensor: torch.Tensor, wanted: Sequence[SymSize], *_how: Any) -> torch.Tensor:
    shape = (*tensor.shape[: tensor.ndim - len(wanted)], *wanted)
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)


_RESULTS: Mapping[Any, Callable[..., torch.Tensor | None]] = {
    aten.slice.Tensor: _sliced,
    aten.upsample_nearest1d.default: _resized,
    aten.upsample_nearest2d.default: _resized,
    aten.upsample_nearest3d.default: _resized,
    aten.upsample_linear1d.default: _resized,
    aten.upsample_bilinear2d.default: _resized,
    aten.upsample_trilinear3d.default: _resized,
    aten.upsample_bicubic2d.default: _resized,
}
