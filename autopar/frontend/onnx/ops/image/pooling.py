"""Pools."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.lower.open_sizes import is_static
from autopar.frontend.onnx.ops.image.window import Window, pad_spatial, window
from autopar.frontend.onnx.ops.shape.layout import as_ints, larger, smaller
from autopar.frontend.onnx.trace.node import Array, Node, Refused
from autopar.frontend.onnx.trace.values import Translation

Sizes = tuple[int, ...]


def _max_pool_1d(
    x: torch.Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
) -> torch.Tensor:
    """Pools rows of an image one row high: torch's pool of rows asks for their length."""
    windows = ((1, *kernel), (1, *stride), (0, *padding), (1, *dilation))
    return F.max_pool2d(x.unsqueeze(-2), *windows).squeeze(-2)


_MAX_POOL: tuple[Callable[..., torch.Tensor], ...] = (_max_pool_1d, F.max_pool2d, F.max_pool3d)
_MAX_POOL_INDICES: tuple[Callable[..., tuple[torch.Tensor, torch.Tensor]], ...] = (
    F.max_pool1d_with_indices,
    F.max_pool2d_with_indices,
    F.max_pool3d_with_indices,
)
_AVG_POOL: tuple[Callable[..., torch.Tensor], ...] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


def _counts(node: Node, sizes: tuple[int, ...], shape: Window) -> list[int]:
    """Returns how many windows there are along each dimension."""
    counts = []
    for size, first, last, extent, step in zip(
        sizes, shape.before, shape.after, shape.extent, shape.stride, strict=True
    ):
        room = size + first + last - extent
        count = room // step + 1
        if node.flag("ceil_mode"):
            count = (room + step - 1) // step + 1
            # A window that starts in the padding at the end doesn't count.
            within = (size + first + step - 1) // step
            if not is_sure(count <= within):
                count = larger(smaller(count, within), count - 1)
        if count < 1:
            raise Refused(f"a window of {extent} on {size} elements")
        counts.append(count)
    return counts


def _exact(sizes: tuple[int, ...], shape: Window, counts: list[int]) -> tuple[int, ...]:
    """Returns the padding at the end with which exactly so many windows fit."""
    return tuple(
        (count - 1) * step + extent - size - first
        for count, step, extent, size, first in zip(
            counts, shape.stride, shape.extent, sizes, shape.before, strict=True
        )
    )


def _native(node: Node, shape: Window) -> bool:
    """Tells whether torch's pools take the padding of this window."""
    small = all(2 * pad <= size for pad, size in zip(shape.before, shape.kernel, strict=True))
    return shape.symmetric and small and not node.flag("ceil_mode")


def _max_pool(node: Node, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    sizes = tuple(x.shape[2:])
    shape = window(node, sizes)
    counts = _counts(node, sizes, shape)
    whole = x if x.dtype.is_floating_point else x.to(torch.float32)
    if _native(node, shape):
        first, padding = (0,) * len(sizes), shape.before
    else:
        first, padding = shape.before, (0,) * len(sizes)
        whole = pad_spatial(whole, shape.before, _exact(sizes, shape, counts), -math.inf)
    functions = _MAX_POOL_INDICES if node.wants(1) else _MAX_POOL
    result = functions[len(sizes) - 1](whole, shape.kernel, shape.stride, padding, shape.dilation)
    if isinstance(result, torch.Tensor):
        return result.to(x.dtype)
    values, indices = result
    padded = tuple(whole.shape[2:])
    return values.to(x.dtype), _flat_indices(node, indices, x.shape, padded, first)


def _flat_indices(
    node: Node,
    indices: torch.Tensor,
    shape: torch.Size,
    padded: tuple[int, ...],
    first: tuple[int, ...],
) -> torch.Tensor:
    """Returns indices into the whole tensor from torch's, which count within a padded plane."""
    sizes = list(shape[2:])
    coordinates = []
    rest = indices
    for size, offset in zip(reversed(padded), reversed(first), strict=True):
        coordinates.append(rest % size - offset)
        rest = torch.div(rest, size, rounding_mode="floor")
    coordinates.reverse()
    order = range(len(sizes))
    if node.flag("storage_order"):
        order = reversed(order)  # type: ignore[assignment]
    flat = torch.zeros_like(indices)
    for at in order:
        flat = flat * sizes[at] + coordinates[at]
    planes = torch.arange(shape[0] * shape[1]).reshape(shape[0], shape[1], *[1] * len(sizes))
    return flat + planes * math.prod(sizes)


def _window_sum(x: torch.Tensor, shape: Window, counts: list[int]) -> torch.Tensor:
    """Sums the windows of a padded input: shifted, strided slices."""
    total: torch.Tensor | None = None
    for offset in itertools.product(*map(range, shape.kernel)):
        part = x
        for at, (o, gap, count, step) in enumerate(
            zip(offset, shape.dilation, counts, shape.stride, strict=True)
        ):
            part = _strided(part, at + 2, o * gap, count, step)
        total = part if total is None else total + part
    if total is None:
        raise Refused("an empty window")
    return total


def _strided(x: torch.Tensor, axis: int, start: int, count: int, step: int) -> torch.Tensor:
    """Returns so many elements along an axis, from one in steps."""
    length = (count - 1) * step + 1
    index = [slice(None)] * axis
    if isinstance(length, int):
        return x[(*index, slice(start, start + length, step))]
    x = x.narrow(axis, start, length)
    return x if step == 1 else x[(*index, slice(0, length, step))]


def _average_pool(node: Node, x: torch.Tensor) -> torch.Tensor:
    sizes = tuple(x.shape[2:])
    shape = window(node, sizes)
    counts = _counts(node, sizes, shape)
    include = node.flag("count_include_pad")
    flat = all(gap == 1 for gap in shape.dilation)
    if flat and _native(node, shape):
        function = _AVG_POOL[len(sizes) - 1]
        return function(x, shape.kernel, shape.stride, shape.before, count_include_pad=include)
    padded = pad_spatial(x, shape.before, _exact(sizes, shape, counts))
    return _window_sum(padded, shape, counts) / _divisor(x, sizes, shape, counts, include)


def _divisor(
    x: torch.Tensor, sizes: tuple[int, ...], shape: Window, counts: list[int], include: bool
) -> torch.Tensor:
    """Returns how many elements of each window count."""
    if not is_static(x):
        return _counted(x, sizes, shape, counts, include)
    total = np.ones([1] * len(sizes))
    for at, size in enumerate(sizes):
        low = 0 if not include else -shape.before[at]
        high = size if not include else size + shape.after[at]
        starts = np.arange(counts[at])[:, None] * shape.stride[at] - shape.before[at]
        taken = starts + np.arange(shape.kernel[at]) * shape.dilation[at]
        inside = ((taken >= low) & (taken < high)).sum(1)
        total = total * inside.reshape([-1 if axis == at else 1 for axis in range(len(sizes))])
    return torch.tensor(total.tolist(), dtype=x.dtype)


def _counted(
    x: torch.Tensor, sizes: tuple[int, ...], shape: Window, counts: list[int], include: bool
) -> torch.Tensor:
    """Returns the same where sizes are open: the windows of a tensor of ones are summed."""
    before, after = shape.before, _exact(sizes, shape, counts)
    if include:
        after = tuple(end - more for end, more in zip(after, shape.after, strict=True))
        added = zip(sizes, before, shape.after, strict=True)
        sizes, before = tuple(map(sum, added)), (0,) * len(sizes)
    ones = torch.ones((1, 1, *sizes), dtype=x.dtype)
    return _window_sum(pad_spatial(ones, before, after), shape, counts)


def _lp_pool(node: Node, x: torch.Tensor) -> torch.Tensor:
    sizes = tuple(x.shape[2:])
    shape = window(node, sizes)
    counts = _counts(node, sizes, shape)
    power = node.integer("p", 2)
    padded = pad_spatial(x.abs() ** power, shape.before, _exact(sizes, shape, counts))
    return _window_sum(padded, shape, counts) ** (1.0 / power)


def _global(function: Callable[[torch.Tensor, list[int], bool], torch.Tensor]) -> Translation:
    def run(node: Node, x: torch.Tensor) -> torch.Tensor:
        return function(x, list(range(2, x.ndim)), True)

    return Translation(run)


def _global_lp_pool(node: Node, x: torch.Tensor) -> torch.Tensor:
    power = node.integer("p", 2)
    dims = list(range(2, x.ndim))
    return torch.sum(x.abs() ** power, dims, True) ** (1.0 / power)


def _max_unpool(
    node: Node, x: torch.Tensor, indices: torch.Tensor, size: Array | None = None
) -> torch.Tensor:
    sizes = tuple(x.shape[2:])
    shape = window(node, sizes)
    natural = [
        (count - 1) * step + extent - first - last
        for count, step, extent, first, last in zip(
            sizes, shape.stride, shape.extent, shape.before, shape.after, strict=True
        )
    ]
    # The indices count within the natural result; a larger one is filled up with zeros.
    flat = x.new_zeros(x.shape[0] * x.shape[1] * math.prod(natural))
    result = flat.scatter(0, indices.reshape(-1), x.reshape(-1))
    result = result.reshape([x.shape[0], x.shape[1], *natural])
    if size is None:
        return result
    grow = [target - have for target, have in zip(as_ints(size)[2:], natural, strict=True)]
    return pad_spatial(result, (0,) * len(grow), tuple(grow))


TABLE: Mapping[str, Translation] = {
    "AveragePool": Translation(_average_pool, expands=True),
    "GlobalAveragePool": _global(torch.mean),
    "GlobalLpPool": Translation(_global_lp_pool),
    "GlobalMaxPool": _global(torch.amax),
    "LpPool": Translation(_lp_pool, expands=True),
    "MaxPool": Translation(_max_pool, expands=True),
    "MaxUnpool": Translation(_max_unpool, static=(2,), expands=True),
}
