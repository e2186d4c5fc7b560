"""Resize: separable interpolation.

Where torch has the same interpolation, its op is used. Else each axis is multiplied with a matrix
of weights, computed at import time, that has a row per output element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from autopar.frontend.lower.open_sizes import is_static
from autopar.frontend.onnx.ops.image.resize_open import resize_open
from autopar.frontend.onnx.ops.linear import times_matrix
from autopar.frontend.onnx.ops.shape.layout import as_axes, as_ints
from autopar.frontend.onnx.ops.shape.padding import MOST_INDICES
from autopar.frontend.onnx.trace.node import Array, Node, Refused, Undecided, as_array
from autopar.frontend.onnx.trace.values import Known, Traced, Translation, Value

Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Axis:
    """How one axis is resized.

    Attributes:
        axis: Which one.
        size: Its size before.
        target: Its size after.
        scale: The factor between them, as the coordinates see it.
        start, end: The region of interest, relative to the size.
    """

    axis: int
    size: int
    target: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _caveat(node: Node, inputs: Sequence[Value]) -> str:
    """Returns how executors differ about a node: whether aligned corners see a rounded length."""
    x, *rest = inputs
    if not isinstance(x, (Known, Traced)):
        return ""
    if node.text("coordinate_transformation_mode") != "align_corners":
        return ""
    arrays = [as_array(it.tensor) if isinstance(it, Known) else None for it in rest]
    tensor = x.tensor if isinstance(x, Known) else x.fake
    if not is_static(tensor):
        return ""
    try:
        axes = _axes(node, tensor, *arrays)
    except Refused:
        return ""
    for a in axes:
        length = a.size * a.scale
        if abs(length - a.target) > 1e-6:
            return (
                f"dimension {a.axis} is resized to {length:.6g} elements, of which {a.target} are"
                f" whole; corners are aligned with the length {length:.6g}, as ONNX's reference"
                f" does it, where PyTorch and ONNX Runtime take {a.target}; give sizes to be clear"
            )
    return ""


def _resize(
    node: Node,
    x: torch.Tensor,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> torch.Tensor:
    if _is_open(x, sizes):
        if node.text("coordinate_transformation_mode") == "tf_crop_and_resize":
            cropped = (x.shape[axis] for axis in _along(node, x))
            raise Undecided("it crops open sizes", *cropped, by_range=False)
        resized = resize_open(node, x, _along(node, x), scales, sizes)
        return resized if resized.dtype == x.dtype else _rounded(resized, x.dtype)
    axes = _axes(node, x, roi, scales, sizes)
    changed = [a for a in axes if a.target != a.size or a.scale != 1.0 or a.start or a.end != 1.0]
    if not changed:
        return x
    native = _native(node, x, changed)
    if native is not None:
        return native
    mode = node.text("mode", "nearest")
    kind = x.dtype
    outside: list[tuple[int, npt.NDArray[np.bool_]]] = []
    for item in changed:
        at = _coordinates(node, item)
        if mode == "nearest":
            index = _nearest(node, at, item)
            x = x.index_select(item.axis, torch.tensor(index.tolist(), dtype=torch.int64))
        else:
            matrix = _matrix(node, at, item, mode)
            weights = torch.tensor(matrix.tolist(), dtype=torch.float32)
            x = _apply(x.to(torch.float32), item.axis, weights)
        if node.text("coordinate_transformation_mode") == "tf_crop_and_resize":
            outside.append((item.axis, (at < 0) | (at > item.size - 1)))
    result = x if kind == x.dtype else _rounded(x, kind)
    return _extrapolated(node, result, outside)


def _rounded(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return x.to(kind) if kind.is_floating_point else torch.round(x).to(kind)


def _apply(x: torch.Tensor, axis: int, weights: torch.Tensor) -> torch.Tensor:
    moved = x.movedim(axis, -1)
    return times_matrix(moved, weights.t()).movedim(-1, axis)


def _extrapolated(
    node: Node, x: torch.Tensor, outside: list[tuple[int, npt.NDArray[np.bool_]]]
) -> torch.Tensor:
    for axis, mask in outside:
        if mask.any():
            where = torch.tensor(mask.tolist()).reshape(
                [-1 if a == axis else 1 for a in range(x.ndim)]
            )
            x = torch.where(where, node.number("extrapolation_value", 0.0), x)
    return x


def _axes(
    node: Node,
    x: torch.Tensor,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> list[_Axis]:
    return _plan(node, x, _along(node, x), roi, scales, sizes)


def _along(node: Node, x: torch.Tensor) -> list[int]:
    given = node.integers("axes")
    return as_axes(given if given is not None else list(range(x.ndim)), x.ndim)


def _is_open(x: torch.Tensor, sizes: Array | None) -> bool:
    wanted = () if sizes is None else sizes.flat
    return not is_static(x) or any(isinstance(size, torch.SymInt) for size in wanted)


def _plan(
    node: Node,
    x: torch.Tensor,
    along: list[int],
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
) -> list[_Axis]:
    region = None
    if node.text("coordinate_transformation_mode") == "tf_crop_and_resize" and roi is not None:
        region = [float(v) for v in roi.reshape(-1).tolist()]
        if len(region) != 2 * len(along):
            raise Refused(f"a region of {len(region)} numbers for {len(along)} axes")
    if sizes is not None and sizes.size:
        wanted = as_ints(sizes)
        ratio = [w / max(1, x.shape[a]) for w, a in zip(wanted, along, strict=True)]
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(ratio) if policy == "not_larger" else max(ratio)
            ratio = [factor] * len(along)
            wanted = [math.floor(factor * x.shape[a] + 0.5) for a in along]
    elif scales is not None and scales.size:
        ratio = [float(s) for s in scales.reshape(-1).tolist()]
        if len(ratio) != len(along) or any(r <= 0 for r in ratio):
            raise Refused(f"scales {ratio} for {len(along)} axes")
        extent = [1.0] * len(along)
        if region is not None:
            half = len(along)
            extent = [region[half + at] - region[at] for at in range(half)]
        wanted = [
            math.floor(x.shape[a] * e * r + 1e-7)
            for a, r, e in zip(along, ratio, extent, strict=True)
        ]
    else:
        raise Refused("it has neither scales nor sizes")
    if any(not 1 <= w <= MOST_INDICES for w in wanted):
        raise Refused(f"a result of sizes {wanted}")
    axes = []
    for at, axis in enumerate(along):
        start, end = (region[at], region[len(along) + at]) if region else (0.0, 1.0)
        axes.append(_Axis(axis, x.shape[axis], wanted[at], ratio[at], start, end))
    return axes


def _native(node: Node, x: torch.Tensor, axes: list[_Axis]) -> torch.Tensor | None:
    """Resizes with torch's own op if there is one that computes the same."""
    rank = x.ndim - 2
    spatial = all(a.axis >= 2 for a in axes)
    exact = all(abs(a.size * a.scale - a.target) < 1e-6 for a in axes)
    if not 1 <= rank <= 3 or not spatial or not exact or not x.dtype.is_floating_point:
        return None
    if node.flag("antialias") or node.flag("exclude_outside"):
        return None
    size = list(x.shape[2:])
    for item in axes:
        size[item.axis - 2] = item.target
    mode = node.text("mode", "nearest")
    how = node.text("coordinate_transformation_mode", "half_pixel")
    rounding = node.text("nearest_mode", "round_prefer_floor")
    if mode == "nearest" and how == "asymmetric" and rounding == "floor":
        return F.interpolate(x, size, mode="nearest")
    if mode == "nearest":
        return None
    larger = all(a.target > 1 for a in axes)
    aligned = how == "align_corners" and len(axes) == rank and larger
    if not aligned and how != "half_pixel" and not (how == "pytorch_half_pixel" and larger):
        return None
    if mode == "linear":
        name = ("linear", "bilinear", "trilinear")[rank - 1]
        return F.interpolate(x, size, mode=name, align_corners=aligned)
    if mode == "cubic" and rank == 2 and node.number("cubic_coeff_a", -0.75) == -0.75:
        return F.interpolate(x, size, mode="bicubic", align_corners=aligned)
    return None


def _coordinates(node: Node, a: _Axis) -> Weights:
    """Returns where in the input each output element lies (ONNX Resize, attributes).

    For nearest elements in single precision, as executors compute it: 17 / 1.7 is 10 there.
    """
    nearest = node.text("mode", "nearest") == "nearest"
    out: Weights = np.arange(a.target).astype(np.float32 if nearest else np.float64)
    how = node.text("coordinate_transformation_mode", "half_pixel")
    if how == "half_pixel":
        return (out + 0.5) / a.scale - 0.5
    if how == "half_pixel_symmetric":
        # The result is centred although its size was rounded.
        adjustment = a.target / (a.scale * a.size)
        offset = a.size / 2 * (1 - adjustment)
        return offset + (out + 0.5) / a.scale - 0.5
    if how == "pytorch_half_pixel":
        return (out + 0.5) / a.scale - 0.5 if a.target > 1 else out * 0.0
    if how == "align_corners":
        length = a.size * a.scale
        return out * (a.size - 1) / (length - 1) if length != 1 else out * 0.0
    if how == "asymmetric":
        return out / a.scale
    if how == "tf_half_pixel_for_nn":
        return (out + 0.5) / a.scale
    if how == "tf_crop_and_resize":
        first, last = a.start * (a.size - 1), a.end * (a.size - 1)
        if a.target > 1:
            return first + out * (last - first) / (a.target - 1)
        return out * 0.0 + 0.5 * (first + last)
    raise Refused(f"coordinate_transformation_mode {how!r} isn't supported")


def _nearest(node: Node, at: Weights, a: _Axis) -> npt.NDArray[np.int64]:
    how = node.text("nearest_mode", "round_prefer_floor")
    if how == "round_prefer_floor":
        index = np.ceil(at - 0.5)
    elif how == "round_prefer_ceil":
        index = np.floor(at + 0.5)
    elif how == "floor":
        index = np.floor(at)
    elif how == "ceil":
        index = np.ceil(at)
    else:
        raise Refused(f"nearest_mode {how!r} isn't supported")
    return np.clip(index, 0, a.size - 1).astype(np.int64)


def _matrix(node: Node, at: Weights, a: _Axis, mode: str) -> Weights:
    """Returns the weights of each input element (column) in each output element (row)."""
    stretch = 1.0
    if node.flag("antialias") and a.scale < 1:
        # Filtered over all input elements that an output element covers.
        stretch = a.scale
    kernels: Mapping[str, tuple[float, Callable[[Weights], Weights]]] = {
        "linear": (1.0, _linear),
        "cubic": (2.0, _cubic(node.number("cubic_coeff_a", -0.75))),
    }
    if mode not in kernels:
        raise Refused(f"mode {mode!r} isn't supported")
    reach, kernel = kernels[mode]
    span = math.ceil(reach / stretch) + 1
    if a.target * a.size > MOST_INDICES:
        raise Refused(f"{a.size} elements resized to {a.target} by a matrix")
    matrix = np.zeros((a.target, a.size))
    rows = np.arange(a.target)
    exclude = node.flag("exclude_outside")
    for offset in range(-span, span + 1):
        column = np.floor(at).astype(np.int64) + offset
        weight = kernel((column - at) * stretch) * stretch
        if exclude:
            weight = np.where((column >= 0) & (column < a.size), weight, 0.0)
        np.add.at(matrix, (rows, np.clip(column, 0, a.size - 1)), weight)
    total = matrix.sum(1, keepdims=True)
    return matrix / np.where(total == 0, 1.0, total)


def _linear(distance: Weights) -> Weights:
    result: Weights = np.maximum(0.0, 1.0 - np.abs(distance))
    return result


def _cubic(a: float) -> Callable[[Weights], Weights]:
    """Returns the cubic convolution kernel (Keys, 1981)."""

    def kernel(distance: Weights) -> Weights:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        result: Weights = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
        return result

    return kernel


TABLE: Mapping[str, Translation] = {
    "Resize": Translation(_resize, static=(1, 2, 3), expands=True, caveat=_caveat),
}
