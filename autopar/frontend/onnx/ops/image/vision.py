"""Sampling images at points that the program computes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from autopar.frontend.onnx.ops.image.window import window
from autopar.frontend.onnx.ops.shape.layout import take_for
from autopar.frontend.onnx.trace.node import Node, Refused
from autopar.frontend.onnx.trace.values import Translation


def _grid_sample(node: Node, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    mode = node.text("mode", "bilinear" if node.opset < 20 else "linear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    padding = node.text("padding_mode", "zeros")
    take_for(grid.shape[-1], x.ndim - 2)
    return F.grid_sample(
        x,
        grid.to(x.dtype),
        mode=mode,
        padding_mode=padding,
        align_corners=node.flag("align_corners"),
    )


def _roi_align(
    node: Node, x: torch.Tensor, rois: torch.Tensor, batch: torch.Tensor
) -> torch.Tensor:
    samples = node.integer("sampling_ratio", 0)
    if samples < 1:
        raise Refused("sampling_ratio 0: how many points it samples depends on the regions")
    half = node.text("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    half = half and node.opset >= 16
    region = rois * node.number("spatial_scale", 1.0) - (0.5 if half else 0.0)
    take_for(rois.shape[1], 4)
    x1, y1, x2, y2 = (region.select(1, at) for at in range(4))
    width, height = x2 - x1, y2 - y1
    if not half:
        width, height = width.clamp(min=1.0), height.clamp(min=1.0)
    rows, columns = node.integer("output_height", 1), node.integer("output_width", 1)
    ys = _spread(y1, height, rows * samples)
    xs = _spread(x1, width, columns * samples)
    low_y, high_y, down, ok_y = _neighbours(ys, x.shape[2])
    low_x, high_x, right, ok_x = _neighbours(xs, x.shape[3])
    image = x.permute(0, 2, 3, 1)
    at = batch.to(torch.int64).reshape(-1, 1, 1)
    corners = []
    for y, fy in ((low_y, 1 - down), (high_y, down)):
        for column, fx in ((low_x, 1 - right), (high_x, right)):
            weight = fy.unsqueeze(2) * fx.unsqueeze(1)
            weight = torch.where(ok_y.unsqueeze(2) & ok_x.unsqueeze(1), weight, 0.0)
            pixels = image[at, y.unsqueeze(2), column.unsqueeze(1)]
            corners.append(pixels * weight.unsqueeze(3))
    shape = [rois.shape[0], rows, samples, columns, samples, x.shape[1]]
    if node.text("mode", "avg") == "max":
        best = torch.stack(corners).amax(0).reshape(shape).amax((2, 4))
        return best.permute(0, 3, 1, 2)
    total = (corners[0] + corners[1] + corners[2] + corners[3]).reshape(shape)
    return total.mean((2, 4)).permute(0, 3, 1, 2)


def _spread(start: torch.Tensor, extent: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the centres of so many equal parts of each interval."""
    part = (torch.arange(count, dtype=start.dtype) + 0.5) / count
    return start.unsqueeze(1) + extent.unsqueeze(1) * part


def _neighbours(at: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
    """Returns the pixels on either side, the weight of the second, and what isn't far outside."""
    inside = (at >= -1.0) & (at <= size)
    clamped = at.clamp(0.0, size - 1)
    low = clamped.floor()
    high = (low + 1).clamp(max=size - 1)
    return low.to(torch.int64), high.to(torch.int64), clamped - low, inside


def _deform_conv(
    node: Node,
    x: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    bias: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    n, channels, height, width = x.shape
    shape = window(node, (height, width), list(weight.shape[2:]))
    groups, parts = node.integer("group", 1), node.integer("offset_group", 1)
    if min(groups, parts) < 1 or channels % groups or channels % parts:
        raise Refused(f"{channels} channels, {groups} groups and {parts} offset groups")
    rows, columns = offset.shape[2:]
    taps = shape.kernel[0] * shape.kernel[1]
    moved = offset.reshape(n, parts, taps, 2, rows * columns)
    points = _tap_points(shape.kernel, shape.dilation, shape.stride, shape.before, rows, columns)
    ys = moved[:, :, :, 0] + points[0].to(x.dtype)
    xs = moved[:, :, :, 1] + points[1].to(x.dtype)
    planes = x.reshape(n, parts, channels // parts, height * width)
    sampled = _bilinear(planes, ys, xs, height, width)
    if mask is not None:
        sampled = sampled * mask.reshape(n, parts, 1, taps, rows * columns)
    matrix = sampled.reshape(n, groups, channels // groups * taps, rows * columns)
    kernel = weight.reshape(1, groups, weight.shape[0] // groups, -1)
    result = torch.matmul(kernel, matrix).reshape(n, weight.shape[0], rows, columns)
    return result if bias is None else result + bias.reshape(-1, 1, 1)


def _tap_points(
    kernel: tuple[int, ...],
    dilation: tuple[int, ...],
    stride: tuple[int, ...],
    before: tuple[int, ...],
    rows: int,
    columns: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns where each tap of each window lies: [taps, windows], for rows and columns."""
    tap_y = torch.arange(kernel[0]).reshape(-1, 1, 1, 1) * dilation[0]
    tap_x = torch.arange(kernel[1]).reshape(1, -1, 1, 1) * dilation[1]
    out_y = torch.arange(rows).reshape(1, 1, -1, 1) * stride[0] - before[0]
    out_x = torch.arange(columns).reshape(1, 1, 1, -1) * stride[1] - before[1]
    full = (kernel[0], kernel[1], rows, columns)
    taps, windows = kernel[0] * kernel[1], rows * columns
    return (
        (tap_y + out_y).expand(full).reshape(taps, windows),
        (tap_x + out_x).expand(full).reshape(taps, windows),
    )


def _bilinear(
    planes: torch.Tensor, ys: torch.Tensor, xs: torch.Tensor, height: int, width: int
) -> torch.Tensor:
    """Samples [n, g, c, pixels] at [n, g, taps, windows]; what lies outside is zero."""
    n, groups, channels, _ = planes.shape
    low_y, low_x = ys.floor(), xs.floor()
    total: torch.Tensor | None = None
    for step_y in (0, 1):
        for step_x in (0, 1):
            y, x = low_y + step_y, low_x + step_x
            share = (1 - (ys - y).abs()) * (1 - (xs - x).abs())
            inside = (y >= 0) & (y <= height - 1) & (x >= 0) & (x <= width - 1)
            share = torch.where(inside, share, 0.0)
            index = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
            flat = index.to(torch.int64).reshape(n, groups, 1, -1).expand(-1, -1, channels, -1)
            values = torch.gather(planes, 3, flat).reshape(n, groups, channels, *ys.shape[2:])
            part = values * share.unsqueeze(2)
            total = part if total is None else total + part
    if total is None:
        raise Refused("nothing to sample")
    return total


TABLE: Mapping[str, Translation] = {
    "DeformConv": Translation(_deform_conv),
    "GridSample": Translation(_grid_sample),
    "RoiAlign": Translation(_roi_align),
}
