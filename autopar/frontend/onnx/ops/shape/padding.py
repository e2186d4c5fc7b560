"""Padding of a dimension with what is near its borders."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from autopar.frontend.onnx.trace.node import Refused, Undecided

MOST_INDICES = 2**26
"""Elements of an index that a translation makes up, at most."""


def pad_axis(x: torch.Tensor, axis: int, left: int, right: int, mode: str) -> torch.Tensor:
    """Pads an axis in one of ONNX's modes.

    Raises:
        Refused: If it can't be padded so.
    """
    size = x.shape[axis]
    if any(isinstance(each, torch.SymInt) for each in (size, left, right)):
        return _pad_open(x, axis, left, right, mode)
    if size == 0 or not 0 <= size + left + right <= MOST_INDICES:
        raise Refused(f"can't pad axis {axis} of shape {list(x.shape)} by {left} and {right}")
    at = np.arange(-left, size + right)
    if mode == "edge":
        index = np.clip(at, 0, size - 1)
    elif mode == "wrap":
        index = at % size
    elif mode == "reflect":
        period = max(1, 2 * (size - 1))
        index = (size - 1) - np.abs((at % period) - (size - 1))
    else:
        raise Refused(f"pad mode {mode!r} isn't supported")
    return x.index_select(axis, torch.tensor(index.tolist(), dtype=torch.int64))


def _pad_open(x: torch.Tensor, axis: int, left: int, right: int, mode: str) -> torch.Tensor:
    """Pads an axis of open size, which takes for granted that it is long enough for that."""
    if mode == "wrap" and left >= 0 and right >= 0:
        return _wrapped(x, axis, left, right)
    names = {"edge": "replicate", "reflect": "reflect"}
    if mode not in names or left < 0 or right < 0:
        what = f"pad mode {mode!r} by {left} and {right} of {x.shape[axis]} elements"
        raise Undecided(what, x.shape[axis], left, right, by_range=False)
    moved = x.movedim(axis, -1)
    # Torch pads the last one of two or three dimensions.
    flat = moved if moved.ndim in (2, 3) else moved.reshape(1, -1, moved.shape[-1])
    padded = F.pad(flat, [left, right], mode=names[mode])
    return padded.reshape(*moved.shape[:-1], padded.shape[-1]).movedim(-1, axis)


def _wrapped(x: torch.Tensor, axis: int, left: int, right: int) -> torch.Tensor:
    """Pads an axis with its other end, which takes for granted that it is as long as that."""
    size = x.shape[axis]
    torch._check(size >= left)  # type: ignore[no-untyped-call]
    torch._check(size >= right)  # type: ignore[no-untyped-call]
    return torch.cat([x.narrow(axis, size - left, left), x, x.narrow(axis, 0, right)], axis)
