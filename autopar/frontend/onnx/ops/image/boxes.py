"""Selection of boxes. How many are selected depends on them, so they must be known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from autopar.frontend.onnx.trace.node import Array, Node, Refused
from autopar.frontend.onnx.trace.values import Translation

Boxes = npt.NDArray[np.float64]


def _suppress(
    node: Node,
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    least: Array | None = None,
) -> torch.Tensor:
    """Selects the best boxes of each class that don't overlap (ONNX NonMaxSuppression)."""
    limit = int(most.item()) if most is not None else 0
    share = float(overlap.item()) if overlap is not None else 0.0
    corners = _corners(boxes.astype(np.float64), node.flag("center_point_box"))
    if corners.shape[:2] != (scores.shape[0], scores.shape[2]):
        raise Refused(f"boxes of {list(boxes.shape)} for scores of {list(scores.shape)}")
    selected: list[list[int]] = []
    for batch, kind in np.ndindex(scores.shape[:2]):
        row = scores[batch, kind].astype(np.float64)
        order = [int(at) for at in np.argsort(-row, kind="stable")]
        if least is not None:
            order = [at for at in order if row[at] > least.item()]
        kept: list[int] = []
        for at in order:
            apart = all(_overlap(corners[batch, at], corners[batch, k]) <= share for k in kept)
            if len(kept) < limit and apart:
                kept.append(at)
        selected.extend([batch, kind, at] for at in kept)
    return torch.tensor(selected, dtype=torch.int64).reshape(-1, 3)


def _corners(boxes: Boxes, centered: bool) -> Boxes:
    """Returns boxes as their lower and upper corners: y1, x1, y2, x2."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centered:
        # Given as x, y, width, height.
        middle, half = first[..., ::-1], second[..., ::-1] / 2
        first, second = middle - half, middle + half
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _overlap(one: Boxes, other: Boxes) -> float:
    """Returns the area that two boxes share, relative to the area that they cover together."""
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    shared = float(np.prod(np.maximum(high - low, 0.0)))
    total = float(np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2])) - shared
    return shared / total if total > 0 else 0.0


TABLE: Mapping[str, Translation] = {
    "NonMaxSuppression": Translation(_suppress, static=(0, 1, 2, 3, 4)),
}
