"""Convolutions and their transposes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.onnx.ops.image.window import Window, pad_spatial, window
from autopar.frontend.onnx.ops.shape.layout import as_ints, take_for
from autopar.frontend.onnx.trace.node import Array, Node, Refused
from autopar.frontend.onnx.trace.values import Translation


def convolve(
    node: Node, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Convolves as the node's attributes say."""
    shape = window(node, tuple(x.shape[2:]), list(weight.shape[2:]))
    groups = node.integer("group", 1)
    _check_channels(x, weight, groups, weight.shape[1] * groups)
    padding = list(shape.before)
    if not shape.symmetric:
        x = pad_spatial(x, shape.before, shape.after)
        padding = [0] * len(padding)
    stride, dilation = list(shape.stride), list(shape.dilation)
    none = [0] * len(stride)
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, none, groups)


def _check_channels(x: torch.Tensor, weight: torch.Tensor, groups: int, wanted: int) -> None:
    """Takes for granted that there are as many channels as a weight wants.

    Raises:
        Refused: If that can't be, or groups don't divide what the weight has.
    """
    if groups < 1 or is_sure(x.shape[1] != wanted) or is_sure(weight.shape[0] % groups != 0):
        raise Refused(
            f"{x.shape[1]} channels, {groups} groups and a weight of {list(weight.shape)}"
        )
    take_for(x.shape[1], wanted)
    take_for(weight.shape[0] % groups, 0)


def _transposed(
    node: Node, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    groups = node.integer("group", 1)
    _check_channels(x, weight, groups, weight.shape[0])
    sizes = tuple(x.shape[2:])
    shape = window(node, sizes, list(weight.shape[2:]))
    before, after = _cropped(node, sizes, shape)
    stride, dilation = list(shape.stride), list(shape.dilation)
    limit = [max(pair) for pair in zip(stride, dilation, strict=True)]
    extra = [first - last for first, last in zip(before, after, strict=True)]
    fits = all(0 <= e < most for e, most in zip(extra, limit, strict=True))
    if fits and min(before) >= 0:
        return torch.convolution(x, weight, bias, stride, before, dilation, True, extra, groups)
    none = [0] * len(stride)
    whole = torch.convolution(x, weight, None, stride, none, dilation, True, none, groups)
    whole = pad_spatial(whole, tuple(-n for n in before), tuple(-n for n in after))
    return whole if bias is None else whole + bias.reshape(-1, *[1] * len(sizes))


def _cropped(node: Node, sizes: tuple[int, ...], shape: Window) -> tuple[list[int], list[int]]:
    """Returns how many elements of the full result are cropped at either end."""
    rank = len(sizes)
    extra = node.integers("output_padding") or [0] * rank
    if len(extra) != rank:
        raise Refused(f"its output_padding {extra} doesn't fit {rank} dimensions")
    auto = node.text("auto_pad", "NOTSET")
    wanted = node.integers("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [size * step for size, step in zip(sizes, shape.stride, strict=True)]
    if wanted is None:
        ends = [end - more for end, more in zip(shape.after, extra, strict=True)]
        return list(shape.before), ends
    before, after = [], []
    for at, target in enumerate(wanted[-rank:]):
        total = shape.stride[at] * (sizes[at] - 1) + extra[at] + shape.extent[at] - target
        less, more = total // 2, total - total // 2
        first, last = (less, more) if auto == "SAME_UPPER" else (more, less)
        before.append(first)
        after.append(last - extra[at])
    return before, after


def _col2im(node: Node, x: torch.Tensor, image: Array, block: Array) -> torch.Tensor:
    sizes, kernel = as_ints(image), as_ints(block)
    shape = window(node, tuple(sizes), kernel)
    counts = [
        (size + first + last - extent) // step + 1
        for size, first, last, extent, step in zip(
            sizes, shape.before, shape.after, shape.extent, shape.stride, strict=True
        )
    ]
    n, channels = x.shape[0], x.shape[1] // max(1, math.prod(kernel))
    columns = x.reshape(n, channels, *kernel, *counts)
    padded = [s + b + a for s, b, a in zip(sizes, shape.before, shape.after, strict=True)]
    result = x.new_zeros(n, channels, *padded)
    for offset in itertools.product(*map(range, kernel)):
        part = columns
        for position in offset:
            part = part.select(2, position)
        where = tuple(
            slice(o * gap, o * gap + (count - 1) * step + 1, step)
            for o, gap, count, step in zip(
                offset, shape.dilation, counts, shape.stride, strict=True
            )
        )
        index: tuple[slice, ...] = (slice(None), slice(None), *where)
        grown = result.clone()
        grown[index] += part
        result = grown
    return pad_spatial(result, tuple(-b for b in shape.before), tuple(-a for a in shape.after))


TABLE: Mapping[str, Translation] = {
    "Col2Im": Translation(_col2im, static=(1, 2), expands=True),
    "Conv": Translation(convolve, expands=True),
    "ConvTranspose": Translation(_transposed, expands=True),
}
