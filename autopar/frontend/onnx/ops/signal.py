"""Fourier transforms, as products with matrices of sines and cosines, and filter banks."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.onnx.ops.shape.layout import as_axes
from autopar.frontend.onnx.trace.node import Array, Node, Refused
from autopar.frontend.onnx.trace.values import Translation

LONGEST = 8192
"""Samples of a transform at most: its matrices grow with the square."""


def _matrices(rows: int, columns: int, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Returns cos and sin of 2 pi j k / length, for sample j (row) and frequency k (column)."""
    for size in (rows, columns):
        if is_sure(size > LONGEST):
            raise Refused(f"a transform of {length} samples; at most {LONGEST} are supported")
        torch._check(size <= LONGEST)  # type: ignore[no-untyped-call]
    turns = torch.arange(rows).reshape(-1, 1) * torch.arange(columns) % length
    angle = turns.to(torch.float64) * (2 * math.pi) / length
    return torch.cos(angle).to(dtype), torch.sin(angle).to(dtype)


def _transform(
    real: torch.Tensor, imaginary: torch.Tensor | None, length: int, bins: int, inverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Transforms the last axis; returns real and imaginary parts."""
    cos, sin = _matrices(real.shape[-1], bins, length, real.dtype)
    sin = sin if inverse else -sin
    out_real, out_imaginary = torch.matmul(real, cos), torch.matmul(real, sin)
    if imaginary is not None:
        out_real = out_real - torch.matmul(imaginary, sin)
        out_imaginary = out_imaginary + torch.matmul(imaginary, cos)
    if inverse:
        return out_real / length, out_imaginary / length
    return out_real, out_imaginary


def _cut(x: torch.Tensor, length: int) -> torch.Tensor:
    """Cuts the last axis to a length, or fills it up with zeros."""
    if x.shape[-1] >= length:
        return x.narrow(-1, 0, length)
    return torch.nn.functional.pad(x, [0, length - x.shape[-1]])


def _dft(
    node: Node, x: torch.Tensor, length: Array | None = None, axis: Array | None = None
) -> torch.Tensor:
    default = 1 if node.opset < 20 else -2
    along = node.integer("axis", default) if axis is None else int(axis.item())
    dim = as_axes([along], x.ndim)[0]
    if dim == x.ndim - 1 or x.shape[-1] not in (1, 2):
        raise Refused(f"axis {along} of shape {list(x.shape)}, whose last axis isn't 1 or 2")
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    real = x.select(-1, 0).movedim(dim, -1)
    imaginary = x.select(-1, 1).movedim(dim, -1) if x.shape[-1] == 2 else None
    if inverse and onesided:
        return _inverse_real(real, imaginary, length, dim)
    size = int(length.item()) if length is not None else real.shape[-1]
    if size < 1:
        raise Refused(f"a transform of {size} samples")
    bins = size // 2 + 1 if onesided else size
    part = None if imaginary is None else _cut(imaginary, size)
    parts = _transform(_cut(real, size), part, size, bins, inverse)
    return torch.stack([part.movedim(-1, dim) for part in parts], -1)


def _inverse_real(
    real: torch.Tensor, imaginary: torch.Tensor | None, length: Array | None, dim: int
) -> torch.Tensor:
    """Transforms half a spectrum, whose other half is its mirror image, back to real samples."""
    size = int(length.item()) if length is not None else 2 * (real.shape[-1] - 1)
    bins = size // 2 + 1
    cos, sin = _matrices(bins, size, size, real.dtype)
    # Every frequency stands for itself and its mirror image, but for 0 and the highest one.
    single = torch.arange(bins).reshape(-1, 1) * 2 % size == 0
    weight = torch.where(single, 1.0, 2.0).to(real.dtype) / size
    result = torch.matmul(_cut(real, bins), cos * weight)
    if imaginary is not None:
        result = result - torch.matmul(_cut(imaginary, bins), sin * weight)
    return result.movedim(-1, dim).unsqueeze(-1)


def _stft(
    node: Node,
    x: torch.Tensor,
    step: Array,
    window: torch.Tensor | None = None,
    frame: Array | None = None,
) -> torch.Tensor:
    if frame is None and window is None:
        raise Refused("it has neither a window nor a frame length")
    size = int(frame.item()) if frame is not None else 0
    if frame is None and window is not None:
        size = window.shape[0]
    if x.ndim == 2:
        x = x.unsqueeze(-1)
    if not 0 < size <= x.shape[1] or int(step.item()) < 1:
        raise Refused(f"frames of {size} of {x.shape[1]} samples, every {int(step.item())}")
    bins = size // 2 + 1 if node.flag("onesided", True) else size
    frames = [x.select(-1, at).unfold(1, size, int(step.item())) for at in range(x.shape[-1])]
    if window is not None:
        frames = [part * window for part in frames]
    imaginary = frames[1] if len(frames) > 1 else None
    return torch.stack(_transform(frames[0], imaginary, size, bins, False), -1)


def _mel_weights(
    node: Node, bins: Array, length: Array, rate: Array, low: Array, high: Array
) -> torch.Tensor:
    """Returns a bank of triangular filters, evenly spaced on the mel scale."""
    count, samples, hertz = int(bins.item()), int(length.item()), float(rate.item())
    spectrum = samples // 2 + 1
    edges = 2595 * np.log10(1 + np.array([float(low.item()), float(high.item())]) / 700)
    mel = np.arange(count + 2) * (edges[1] - edges[0]) / (count + 2) + edges[0]
    center = ((samples + 1) * 700 * (10 ** (mel / 2595) - 1) // hertz).astype(int)
    bank = np.zeros((spectrum, count))
    for at in range(count):
        first, middle, last = center[at : at + 3]
        if first == middle:
            bank[middle, at] = 1
        for row in range(first, middle + 1):
            if middle > first:
                bank[row, at] = (row - first) / (middle - first)
        for row in range(middle, last):
            if last > middle:
                bank[row, at] = (last - row) / (last - middle)
    return torch.tensor(bank.tolist(), dtype=node.dtype("output_datatype"))


TABLE: Mapping[str, Translation] = {
    "DFT": Translation(_dft, static=(1, 2)),
    "MelWeightMatrix": Translation(_mel_weights, static=(0, 1, 2, 3, 4), expands=True),
    "STFT": Translation(_stft, static=(1, 3)),
}
