"""Short sequences: their convolution as one product with all windows, laid out one by one.

A product costs a few microseconds around what it computes, oneDNN's convolutions several times
that. Narrow windows of one sequence torch convolves by a kernel of its own, which is as fast. Of
long sequences windows take more memory than they save time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autopar.runtime.tuned.kernels import convolve_rows

SHORT = 1 << 23
"""Multiplications up to which products of windows are faster, as measured."""

NARROW = 3
"""Up to how wide windows of one sequence are left to torch's own kernel."""


def windows_matrix(weight: Tensor) -> Tensor:
    """Returns a weight of `row_channels_last` as a matrix: the same memory."""
    return weight.permute(2, 3, 1, 0).flatten(0, 2)


def convolve_windows(
    sequence: Tensor, weight: Tensor, matrix: Tensor, bias: Tensor | None, step: int, zeros: int
) -> Tensor:
    """Convolves sequences, all channels with all others.

    Args:
        sequence: [batch, channels, length].
        weight: See `row_channels_last`.
        matrix: See `windows_matrix`.
        bias: Of each channel of the result.
        step: From window to window.
        zeros: At either end.
    """
    batch, channels, length = sequence.shape
    window, results = matrix.shape
    count = (length + 2 * zeros - weight.shape[3]) // step + 1
    few = 0 < batch * count * window * results <= SHORT
    if not few or count < 1 or (batch == 1 and weight.shape[3] <= NARROW):
        return convolve_rows(
            sequence, weight, bias, [1, step], [0, zeros], [1, 1], False, [0, 0], 1
        )
    rows = sequence.transpose(1, 2)
    if zeros:
        rows = torch.constant_pad_nd(rows, [0, 0, zeros, zeros])
    rows = rows.contiguous()
    strides = (rows.stride(0), step * channels, 1)
    windows = rows.as_strided((batch, count, window), strides).reshape(batch * count, window)
    found = torch.mm(windows, matrix) if bias is None else torch.addmm(bias, windows, matrix)
    return found.view(batch, count, results).transpose(1, 2)
