"""Resize where sizes are open: torch's own interpolation, or indices that the program computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import sympy
import torch

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.onnx.ops.shape.layout import as_ints, larger
from autopar.frontend.onnx.trace.node import Array, Node, Refused, Undecided

MOST_DENOMINATOR = 1024
"""Of scales by which open sizes are multiplied: others are no fractions, but rounded numbers."""


@dataclass(frozen=True, slots=True)
class OpenAxis:
    """How one axis is resized.

    Attributes:
        axis: Which one.
        size, target: Its size before and after; either may be open.
        ratio: The factor between them, as the coordinates see it; None if that isn't the same for
            all sizes.
    """

    axis: int
    size: int
    target: int
    ratio: Fraction | None

    @property
    def is_exact(self) -> bool:
        """Whether coordinates see the ratio of both sizes."""
        ratio = self.ratio
        if ratio is None:
            return True
        return is_sure(self.size * ratio.numerator == self.target * ratio.denominator)

    @property
    def changes(self) -> bool:
        """Whether the axis has another size afterwards, or may have."""
        return not is_sure(self.size == self.target)


def resize_open(
    node: Node, x: torch.Tensor, along: list[int], scales: Array | None, sizes: Array | None
) -> torch.Tensor:
    """Resizes a tensor some sizes of which are open.

    Raises:
        Refused: If it can't be said for all sizes what it computes.
    """
    if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        kept = (x.shape[axis] for axis in along)
        raise Undecided("it keeps the aspect ratio of open sizes", *kept, by_range=False)
    axes = [axis for axis in _axes(x, along, scales, sizes) if axis.changes]
    if not axes:
        return x
    for axis in axes:
        torch._check(axis.target >= 1)  # type: ignore[no-untyped-call]
    found = _native(node, x, axes)
    if found is not None:
        return found
    if node.text("mode", "nearest") == "nearest":
        for axis in axes:
            x = x.index_select(axis.axis, _nearest(node, axis))
        return x
    changing = [axis.size for axis in axes] + [axis.target for axis in axes]
    if node.flag("antialias") or node.text("mode") not in _NEAR:
        what = f"mode {node.text('mode')!r} of what is filtered through open sizes"
        raise Undecided(what, *changing, by_range=False)
    wide = x.to(torch.float32)
    for axis in axes:
        wide = _interpolated(node, wide, axis)
    return wide


def _axes(
    x: torch.Tensor, along: list[int], scales: Array | None, sizes: Array | None
) -> list[OpenAxis]:
    if sizes is not None and sizes.size:
        wanted = as_ints(sizes)
        pairs = [(x.shape[axis], target) for axis, target in zip(along, wanted, strict=True)]
        return [OpenAxis(at, *pair, _ratio(*pair)) for at, pair in zip(along, pairs, strict=True)]
    if scales is None or scales.size != len(along):
        raise Refused("it has neither scales nor sizes for its axes")
    factors = zip(along, scales.reshape(-1).tolist(), strict=True)
    ratios = [_fraction(x.shape[at], float(scale)) for at, scale in factors]
    return [
        OpenAxis(at, x.shape[at], _times(x.shape[at], ratio), ratio)
        for at, ratio in zip(along, ratios, strict=True)
    ]


def _times(size: int, ratio: Fraction) -> int:
    """Returns how many elements so many become; a little less than a whole one counts."""
    if isinstance(size, int):
        return math.floor(size * float(ratio) + 1e-7)
    return size * ratio.numerator // ratio.denominator


def _fraction(size: int, scale: float) -> Fraction:
    """Returns the factor of an axis.

    Raises:
        Undecided: If it is a rounded number, and the size open.
    """
    found = Fraction(scale)
    if scale <= 0:
        raise Refused(f"a scale of {scale:.9g}")
    if found.denominator > MOST_DENOMINATOR and not isinstance(size, int):
        what = f"how many elements {size} times {scale:.9g} are depends on how that is rounded"
        raise Undecided(what, size, by_range=False)
    return found


def _ratio(size: int, target: int) -> Fraction | None:
    """Returns what one size is always multiplied by to give the other, if there is such."""
    sides = [each.node.expr if isinstance(each, torch.SymInt) else each for each in (target, size)]
    found = sympy.cancel(sympy.Integer(1) * sides[0] / sides[1]) if sides[1] != 0 else None
    return Fraction(found.p, found.q) if isinstance(found, sympy.Rational) else None


def _native(node: Node, x: torch.Tensor, axes: Sequence[OpenAxis]) -> torch.Tensor | None:
    """Resizes with torch's own op if there is one that computes the same."""
    rank = x.ndim - 2
    if not 1 <= rank <= 3 or any(axis.axis < 2 for axis in axes) or not x.is_floating_point():
        return None
    if node.flag("antialias") or node.flag("exclude_outside"):
        return None
    mode = node.text("mode", "nearest")
    how = node.text("coordinate_transformation_mode", "half_pixel")
    kernel = _NATIVE.get((mode, rank))
    aligned = how == "align_corners" and len(axes) == rank
    if mode == "nearest":
        fits = how == "asymmetric" and node.text("nearest_mode", "round_prefer_floor") == "floor"
    else:
        fits = aligned or how == "half_pixel" or (how == "pytorch_half_pixel" and _all_larger(axes))
    is_keys = mode != "cubic" or node.number("cubic_coeff_a", -0.75) == -0.75
    if kernel is None or not fits or not is_keys or (aligned and not _all_exact(axes)):
        return None
    size, ratios = list(x.shape[2:]), [None] * rank
    for axis in axes:
        size[axis.axis - 2] = axis.target
        if not axis.is_exact and axis.ratio is not None:
            ratios[axis.axis - 2] = float(axis.ratio)  # type: ignore[call-overload]
    flags = () if mode == "nearest" else (aligned,)
    # Python's dispatcher would take it apart.
    with torch._C._DisablePythonDispatcher():
        found: torch.Tensor = kernel(x, size, *flags, *ratios)
    return found


def _all_exact(axes: Sequence[OpenAxis]) -> bool:
    return all(axis.is_exact for axis in axes)


def _all_larger(axes: Sequence[OpenAxis]) -> bool:
    return all(axis.target > 1 for axis in axes)


def _coordinates(node: Node, axis: OpenAxis, dtype: torch.dtype) -> torch.Tensor:
    """Returns where in the input each output element lies (ONNX Resize, attributes)."""
    how = node.text("coordinate_transformation_mode", "half_pixel")
    out = torch.arange(axis.target, dtype=dtype)
    if how == "align_corners" and axis.is_exact:
        return out * _number(axis.size - 1, dtype) / _number(larger(axis.target - 1, 1), dtype)
    if how == "pytorch_half_pixel" and axis.target == 1:
        return out
    scale = _scale(axis, dtype)
    if how == "asymmetric":
        return out / scale
    if how == "tf_half_pixel_for_nn":
        return (out + 0.5) / scale
    if how in _CENTERED or (how == "half_pixel_symmetric" and axis.is_exact):
        return (out + 0.5) / scale - 0.5
    what = f"coordinates by {how!r}, where {axis.size} elements become {axis.target},"
    raise Undecided(f"{what} through open sizes", axis.size, axis.target, by_range=False)


def _scale(axis: OpenAxis, dtype: torch.dtype) -> torch.Tensor | float:
    """Returns the factor by which an axis is resized, computed by the program if it isn't fixed."""
    if axis.ratio is not None:
        return float(axis.ratio)
    return _number(axis.target, dtype) / _number(axis.size, dtype)


def _number(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((), size, dtype=dtype)


def _nearest(node: Node, axis: OpenAxis) -> torch.Tensor:
    """Returns which element each element of the result is, in single precision as elsewhere."""
    at = _coordinates(node, axis, torch.float32)
    index = _rounded(at, node.text("nearest_mode", "round_prefer_floor")).to(torch.int64)
    return torch.clamp(index, min=0, max=axis.size - 1)


def _interpolated(node: Node, x: torch.Tensor, axis: OpenAxis) -> torch.Tensor:
    """Returns a resized axis: sums of the elements near each place, by their distance."""
    at = _coordinates(node, axis, torch.float64)
    first, shape = torch.floor(at), [-1 if each == axis.axis else 1 for each in range(x.ndim)]
    places, weights = [], []
    for offset in _NEAR[node.text("mode")]:
        place = first + offset
        weight = _weight(node, torch.abs(at - place))
        if node.flag("exclude_outside"):
            weight = torch.where((place >= 0) & (place <= axis.size - 1), weight, 0.0)
        places.append(torch.clamp(place, min=0, max=axis.size - 1).to(torch.int64))
        weights.append(weight)
    total = reduce(torch.add, weights)
    parts = (
        x.index_select(axis.axis, place) * (weight / total).to(x.dtype).reshape(shape)
        for place, weight in zip(places, weights, strict=True)
    )
    return reduce(torch.add, parts)


def _weight(node: Node, distance: torch.Tensor) -> torch.Tensor:
    """Returns what elements at a distance count: linearly, or by Keys' cubic convolution (1981)."""
    if node.text("mode") == "linear":
        return torch.clamp(1.0 - distance, min=0.0)
    a, d = node.number("cubic_coeff_a", -0.75), distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0.0))


def _rounded(at: torch.Tensor, how: str) -> torch.Tensor:
    if how == "round_prefer_floor":
        return torch.ceil(at - 0.5)
    if how == "round_prefer_ceil":
        return torch.floor(at + 0.5)
    if how in ("floor", "ceil"):
        return torch.floor(at) if how == "floor" else torch.ceil(at)
    raise Refused(f"nearest_mode {how!r} isn't supported")


_CENTERED = ("half_pixel", "pytorch_half_pixel")
"""How coordinates are found by the middles of elements."""

_NEAR = {"linear": (0, 1), "cubic": (-1, 0, 1, 2)}
"""Which elements count at a place between two, from the first of them on, by mode."""

_NATIVE = {
    ("nearest", 1): torch.ops.aten.upsample_nearest1d.default,
    ("nearest", 2): torch.ops.aten.upsample_nearest2d.default,
    ("nearest", 3): torch.ops.aten.upsample_nearest3d.default,
    ("linear", 1): torch.ops.aten.upsample_linear1d.default,
    ("linear", 2): torch.ops.aten.upsample_bilinear2d.default,
    ("linear", 3): torch.ops.aten.upsample_trilinear3d.default,
    ("cubic", 2): torch.ops.aten.upsample_bicubic2d.default,
}
"""Torch's interpolations, by mode and number of spatial dimensions."""
