"""Resize where sizes are open: torch's own interpolation, or indices that the program computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import sympy
import torch

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.onnx.ops.shape.layout import as_ints
from autopar.frontend.onnx.trace.node import Array, Node, Refused, to_bind

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
        raise Refused("it keeps the aspect ratio of open sizes", to_bind())
    axes = [axis for axis in _axes(x, along, scales, sizes) if axis.changes]
    if not axes:
        return x
    for axis in axes:
        torch._check(axis.target >= 1)  # type: ignore[no-untyped-call]
    found = _native(node, x, axes)
    if found is not None:
        return found
    if node.text("mode", "nearest") != "nearest":
        how = node.text("coordinate_transformation_mode", "half_pixel")
        raise Refused(f"mode {node.text('mode')!r} with {how!r} through open sizes", to_bind())
    for axis in axes:
        x = x.index_select(axis.axis, _nearest(node, axis))
    return x


def _axes(
    x: torch.Tensor, along: list[int], scales: Array | None, sizes: Array | None
) -> list[OpenAxis]:
    if sizes is not None and sizes.size:
        wanted = as_ints(sizes)
        pairs = [(x.shape[axis], target) for axis, target in zip(along, wanted, strict=True)]
        return [OpenAxis(at, *pair, _ratio(*pair)) for at, pair in zip(along, pairs, strict=True)]
    if scales is None or scales.size != len(along):
        raise Refused("it has neither scales nor sizes for its axes")
    ratios = [_fraction(float(scale)) for scale in scales.reshape(-1).tolist()]
    return [
        OpenAxis(at, x.shape[at], x.shape[at] * ratio.numerator // ratio.denominator, ratio)
        for at, ratio in zip(along, ratios, strict=True)
    ]


def _fraction(scale: float) -> Fraction:
    found = Fraction(scale)
    if scale <= 0 or found.denominator > MOST_DENOMINATOR:
        raise Refused(f"a scale of {scale:.9g}, which is rounded, for open sizes", to_bind())
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


def _nearest(node: Node, axis: OpenAxis) -> torch.Tensor:
    """Returns which element each element of the result is, in single precision as elsewhere."""
    if axis.ratio is None:
        raise Refused(f"{axis.size} elements become {axis.target}, in no fixed ratio", to_bind())
    scale = float(axis.ratio)
    out = torch.arange(axis.target, dtype=torch.float32)
    how = node.text("coordinate_transformation_mode", "half_pixel")
    if how == "asymmetric":
        at = out / scale
    elif how == "tf_half_pixel_for_nn":
        at = (out + 0.5) / scale
    elif how in ("half_pixel", "pytorch_half_pixel") and (how == "half_pixel" or axis.target > 1):
        at = (out + 0.5) / scale - 0.5
    else:
        raise Refused(f"nearest elements by {how!r} through open sizes", to_bind())
    index = _rounded(at, node.text("nearest_mode", "round_prefer_floor")).to(torch.int64)
    return torch.clamp(index, min=0, max=axis.size - 1)


def _rounded(at: torch.Tensor, how: str) -> torch.Tensor:
    if how == "round_prefer_floor":
        return torch.ceil(at - 0.5)
    if how == "round_prefer_ceil":
        return torch.floor(at + 0.5)
    if how in ("floor", "ceil"):
        return torch.floor(at) if how == "floor" else torch.ceil(at)
    raise Refused(f"nearest_mode {how!r} isn't supported")


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
