"""What tuned graphs call: what is computed of weights, once, and other kernels for ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def inverse_deviation(variance: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Returns by what a batch norm multiplies each channel."""
    scale = torch.rsqrt(variance + eps)
    return scale if weight is None else scale * weight


def scaled(tensor: Tensor | None, scale: Tensor | float, dim: int) -> Tensor | None:
    """Returns a weight, or a bias if there is one, whose channels are multiplied.

    Args:
        tensor: The weight.
        scale: A number for each of its channels, or for all.
        dim: The dimension of these.
    """
    if tensor is None or not isinstance(scale, Tensor):
        return None if tensor is None else tensor * scale
    return tensor * scale.reshape(-1, *[1] * (tensor.ndim - 1 - dim))


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


def column_channels_last(weight: Tensor) -> Tensor:
    """Returns the weight of a convolution of images with a column each, lying on its side."""
    return channels_last(weight.transpose(2, 3))


HAS_ONEDNN = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""Whether there are kernels that are called by no other name; they read a bias without strides."""


def convolve(image: Tensor, weight: Tensor, *others: Any) -> Tensor:
    """Convolves images, whatever the order of their dimensions in memory.

    Args:
        image: [batch, channels, height, width].
        weight: With its channels last.
        others: What `torch.convolution` is given further.
    """
    return torch.convolution(channels_last(image), weight, *others)


def convolve_rows(sequence: Tensor, *others: Any) -> Tensor:
    """Convolves sequences as images with a row each, which costs less around small kernels.

    Args:
        sequence: [batch, channels, length].
        others: What `convolve` is given of such images; see `row_channels_last`.
    """
    return convolve(sequence.unsqueeze(2), *others).squeeze(2)


def convolve_columns(image: Tensor, *others: Any) -> Tensor:
    """Convolves images with a column each as images with a row each: kernels go along rows.

    Args:
        image: [batch, channels, height, 1].
        others: What `convolve` is given of such images; see `column_channels_last`.
    """
    return convolve(image.transpose(2, 3), *others).transpose(2, 3)


def convolve_channels(image: Tensor, weight: Tensor, bias: Tensor | None, *others: Any) -> Tensor:
    """Convolves each channel by itself, by the kernel that leaves channels where they are.

    Args:
        image, weight: As `convolve` takes them.
        bias: Of each channel.
        others: Padding, stride, dilation and groups.
    """
    dense = None if bias is None else bias.contiguous()
    return torch.mkldnn_convolution(channels_last(image), weight, dense, *others)


_CHANNELS_BEHIND = {3: (0, 2, 1), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
_CHANNELS_BEFORE = {3: (0, 2, 1), 4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}
"""Orders of dimensions, by how many there are: `permute` takes less than half of `movedim`."""


def convolve_points(
    image: Tensor,
    right: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    packed: Tensor | None,
) -> Tensor:
    """Convolves by a kernel of one point, without padding: multiplies the channels of each point.

    Args:
        image: [batch, channels, ...].
        right: See `of_points`.
        bias: Of each channel of the result.
        stride: How far apart the points are.
        packed: See `multiply`.
    """
    if max(stride) > 1:
        image = image[:, :, *(slice(None, None, step) for step in stride)]
    points = image.permute(_CHANNELS_BEHIND[image.ndim])
    found = multiply(points.reshape(-1, len(right)), right, bias, packed)
    results = found.view(*points.shape[:-1], right.shape[1])
    return results.permute(_CHANNELS_BEFORE[image.ndim])


def of_points(weight: Tensor) -> Tensor:
    """Returns by what `convolve_points` multiplies points."""
    return weight.flatten(1).t()


def convolve_apart(
    image: Tensor, right: Tensor, bias: Tensor | None, kernel: Sequence[int], packed: Tensor | None
) -> Tensor:
    """Makes of each point of an image a block of its own, as a transposed convolution does.

    Args:
        image: [batch, channels, height, width].
        right: See `of_blocks`.
        bias: Of each channel of the result.
        kernel: The sizes of a block.
        packed: See `multiply`.
    """
    points = image.permute(0, 2, 3, 1)
    batch, height, width, channels = points.shape
    rows, columns = kernel
    results = right.shape[1] // (rows * columns)
    repeated = None if bias is None else bias.repeat(rows * columns)
    found = multiply(points.reshape(-1, channels), right, repeated, packed)
    blocks = found.view(batch, height, width, rows, columns, results).transpose(2, 3)
    return blocks.reshape(batch, height * rows, width * columns, results).permute(0, 3, 1, 2)


def of_blocks(weight: Tensor) -> Tensor:
    """Returns by what `convolve_apart` multiplies points."""
    return weight.permute(0, 2, 3, 1).flatten(1)


LARGE, LARGE_IF_NARROW = 12_000_000, 500_000
"""Multiplications from which on a packed matrix pays, and with few columns, as measured."""

NARROW = 8
"""Up to how many these are."""


def is_large(multiplications: int, columns: int) -> bool:
    """Returns whether a product takes less time with a packed matrix, of some columns."""
    return multiplications >= (LARGE_IF_NARROW if columns <= NARROW else LARGE)


def packed(right: Tensor) -> Tensor:
    """Returns the right factor of products in the order that the CPU's kernel reads it in."""
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(right.t(), None)
    return found


def multiply(
    left: Tensor, right: Tensor | None, bias: Tensor | None, packed: Tensor | None
) -> Tensor:
    """Returns a product of matrices.

    Args:
        left: One matrix.
        right: The other, unless it is packed for all sizes of the first.
        bias: What is added to each row.
        packed: `packed` of the other, if that is kept.
    """
    if right is None or (
        packed is not None and is_large(left.shape[0] * right.numel(), right.shape[1])
    ):
        dense = None if bias is None else bias.contiguous()
        linear = torch.ops.mkldnn._linear_pointwise.default
        found: Tensor = linear(left, packed, dense, "none", [], "")
        return found
    return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)
