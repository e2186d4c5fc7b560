"""What tuned graphs call: what is computed of weights, once, and other kernels for ops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def inverse_deviation(variance: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Returns by what a batch norm multiplies each channel."""
    scale = torch.rsqrt(variance + eps)
    return scale if weight is None else scale * weight


def scaled(tensor: Tensor | None, scale: Tensor | float) -> Tensor | None:
    """Returns a weight, or a bias if there is one, whose channels are multiplied.

    Args:
        tensor: The channels of the result are its first dimension.
        scale: A number for each of them, or for all.
    """
    if tensor is None:
        return None
    if isinstance(scale, Tensor):
        scale = scale.reshape(-1, *[1] * (tensor.ndim - 1))
    return tensor * scale


def shifted(bias: Tensor | None, shift: Tensor | float, channels: int) -> Tensor:
    """Returns a bias with something added to each channel."""
    flat = torch.as_tensor(shift, dtype=torch.float32).reshape(-1)
    return flat.expand(channels).contiguous() if bias is None else bias + flat


def shift_behind(weight: Tensor, number: float) -> Tensor:
    """Returns what a number that is added to images adds to each channel of their convolution."""
    return weight.flatten(1).sum(1) * number


def normal_shift(bias: Tensor | None, mean: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
    """Returns the bias of a convolution and of the batch norm behind it.

    Args:
        bias: The convolution's, multiplied already.
        mean: The running mean.
        scale: See `inverse_deviation`.
        shift: The norm's own bias.
    """
    found = -mean * scale
    found = found if shift is None else found + shift
    return found if bias is None else found + bias


def channels_last(tensor: Tensor) -> Tensor:
    """Returns images, or the weight of their convolution, with channels next to one another."""
    return tensor.contiguous(memory_format=torch.channels_last)


def row_channels_last(weight: Tensor) -> Tensor:
    """Returns the weight of a convolution of sequences as one of images with a row each."""
    return channels_last(weight.unsqueeze(2))


def convolve_rows(
    sequence: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Convolves sequences as images with a row each, which costs less around small kernels.

    Args:
        sequence: [batch, channels, length].
        weight: See `row_channels_last`.
        bias: Of each channel of the result.
        stride, padding, dilation, groups: Those of the convolution.
    """
    image = channels_last(sequence.unsqueeze(2))
    steps, zeros, gaps = [1, *stride], [0, *padding], [1, *dilation]
    found = torch.convolution(image, weight, bias, steps, zeros, gaps, False, [0, 0], groups)
    return found.squeeze(2)


def column_channels_last(weight: Tensor) -> Tensor:
    """Returns the weight of a convolution of images with a column each, lying on its side."""
    return channels_last(weight.transpose(2, 3))


def convolve_columns(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Convolves images with a column each as images with a row each: kernels go along rows.

    See `convolve_rows`; the weight is one of `column_channels_last`.
    """
    row = channels_last(image.transpose(2, 3))
    steps, zeros, gaps = (each[::-1] for each in (stride, padding, dilation))
    found = torch.convolution(row, weight, bias, steps, zeros, gaps, False, [0, 0], groups)
    return found.transpose(2, 3)


def convolve_channels(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Convolves each channel by itself, by the kernel that leaves channels where they are.

    See `convolve_rows`; images and weights have their channels last.
    """
    dense = None if bias is None else bias.contiguous()
    return torch.mkldnn_convolution(image, weight, dense, padding, stride, dilation, groups)


LARGE = 1 << 22
"""Multiplications from which on it matters which library multiplies."""

_ALIGNED = 16
"""Rows of matrices of other sizes aren't where one library wants them."""

HAS_ONEDNN = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""Whether there are kernels that are called by no other name; they read a bias without strides."""


def add_product(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Returns a product of matrices with a bias added to each row."""
    (rows, inner), columns = left.shape, right.shape[1]
    odd = inner % _ALIGNED or columns % _ALIGNED
    if odd and HAS_ONEDNN and rows * inner * columns >= LARGE:
        linear = torch.ops.mkldnn._linear_pointwise.default
        found: Tensor = linear(left, right.t(), bias.contiguous(), "none", [], "")
        return found
    return torch.addmm(bias, left, right)
