"""Convolutions with what follows them in their weights, on images whose channels are last.

The CPU's kernels of such images need no other order inside, in which they would have to bring
images first; that is what most of the time goes to in nets of small convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import fx

from autopar.ir.expr.expression import IntExpr, prod
from autopar.ir.ops.shape.view import RESHAPES
from autopar.ir.ops.tuning import CONVOLUTION, NORMALIZED, SCALED, SHIFTED
from autopar.runtime.tuned.graph import (
    DTYPE,
    Tuning,
    arguments_of,
    is_number,
    kind_of,
    per_channel,
    reader_of,
    same_type,
    set_argument,
    shape_of,
    value_of,
)
from autopar.runtime.tuned.kernels import (
    HAS_ONEDNN,
    channels_last,
    column_channels_last,
    convolve,
    convolve_apart,
    convolve_channels,
    convolve_columns,
    convolve_points,
    convolve_rows,
    inverse_deviation,
    normal_shift,
    of_blocks,
    of_points,
    row_channels_last,
    scaled,
    shift_behind,
    shifted,
)
from autopar.runtime.tuned.products import keep_packed
from autopar.runtime.tuned.windows import convolve_windows, windows_matrix

WEIGHT, BIAS = 1, 2
"""Positions among the arguments of a convolution."""


class _Geometry(NamedTuple):
    """What a convolution is given behind its bias."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    more: Sequence[int]
    groups: int

    @property
    def channels_dim(self) -> int:
        """The dimension of a weight along which the channels of the result are."""
        return 1 if self.transposed else 0


def tune_convolutions(tuning: Tuning) -> None:
    """Rewrites the convolutions of a graph whose weights are known."""
    for node in tuning.of_kind((CONVOLUTION,)):
        weight, bias = arguments_of(node)[WEIGHT : BIAS + 1]
        if value_of(node).dtype != DTYPE or not tuning.is_constant(weight):
            continue
        if not tuning.claim(weight):
            continue
        geometry, kernel = _geometry(node), shape_of(weight)
        is_known = bias is None or tuning.is_constant(bias)
        if is_known and (not geometry.transposed or geometry.groups == 1):
            while _take_in(tuning, node) or _take_in_before(tuning, node):
                pass
        _choose(tuning, node, kernel)


def _geometry(node: fx.Node) -> _Geometry:
    return _Geometry(*arguments_of(node)[BIAS + 1 :])


def _take_in(tuning: Tuning, node: fx.Node) -> bool:
    """Moves what reads a convolution into its weights; returns whether that could be done."""
    at, reader = node, reader_of(node)
    while reader is not None and kind_of(reader) in RESHAPES:
        at, reader = reader, reader_of(reader)
    if reader is None or list(shape_of(at)[:2]) != list(shape_of(node)[:2]):
        return False
    if kind_of(reader) in NORMALIZED:
        return _normalize(tuning, node, reader)
    if kind_of(reader) not in SHIFTED | SCALED or reader.kwargs.get("alpha", 1) != 1:
        return False
    others = [arg for arg in arguments_of(reader)[:2] if arg is not at]
    if len(others) != 1 or not same_type(reader, at):
        return False
    if not is_number(others[0]) and not _is_of_channels(tuning, others[0], at):
        return False
    if kind_of(reader) in SCALED:
        _scale(tuning, node, others[0])
    else:
        _shift(tuning, node, others[0])
    tuning.drop(reader, at)
    return True


def _is_of_channels(tuning: Tuning, other: Any, at: fx.Node) -> bool:
    """Returns whether what meets a convolution is a weight with a number per channel."""
    known = tuning.is_constant(other) and per_channel(other, shape_of(at), 1)
    return known and value_of(other).dtype == DTYPE


def _take_in_before(tuning: Tuning, node: fx.Node) -> bool:
    """Moves a number that the image is multiplied by, or that is added to it, into the weights.

    Zeros around the image have nothing added to them. Returns whether that could be done.
    """
    image, weight, *_ = arguments_of(node)
    geometry = _geometry(node)
    if reader_of(image) is not node or kind_of(image) not in SHIFTED | SCALED:
        return False
    given = [arg for arg in arguments_of(image)[:2] if not is_number(arg)]
    numbers = [arg for arg in arguments_of(image)[:2] if is_number(arg)]
    if len(given) != 1 or image.kwargs.get("alpha", 1) != 1 or not same_type(image, given[0]):
        return False
    if kind_of(image) in SCALED:
        set_argument(node, WEIGHT, tuning.constant(weight, scaled, weight, *numbers, 0))
    elif not geometry.transposed and not any(geometry.padding):
        shift = tuning.constant(weight, shift_behind, weight, *numbers)
        _shift(tuning, node, shift)
    else:
        return False
    tuning.drop(image, given[0])
    return True


def _normalize(tuning: Tuning, node: fx.Node, norm: fx.Node) -> bool:
    """Moves a batch norm into a convolution, if it has running statistics that are known."""
    image, weight, bias, mean, variance, _, eps = arguments_of(norm)
    known = (each is None or tuning.is_constant(each) for each in (weight, bias, mean, variance))
    results = {arguments_of(reader)[1]: reader for reader in norm.users}
    if image is not node or not all(known) or 0 not in results:
        return False
    if any(reader.users for at, reader in results.items() if at != 0):
        return False
    scale = tuning.constant(variance, inverse_deviation, variance, weight, eps)
    _scale(tuning, node, scale)
    shift = tuning.constant(mean, normal_shift, arguments_of(node)[BIAS], mean, scale, bias)
    set_argument(node, BIAS, shift)
    results[0].replace_all_uses_with(node)
    for reader in results.values():
        tuning.graph.erase_node(reader)
    tuning.graph.erase_node(norm)
    return True


def _scale(tuning: Tuning, node: fx.Node, scale: fx.Node | float) -> None:
    for at, dim in ((WEIGHT, _geometry(node).channels_dim), (BIAS, 0)):
        if (tensor := arguments_of(node)[at]) is not None:
            set_argument(node, at, tuning.constant(tensor, scaled, tensor, scale, dim))


def _shift(tuning: Tuning, node: fx.Node, shift: Any) -> None:
    like = shift if isinstance(shift, fx.Node) else arguments_of(node)[WEIGHT]
    bias, channels = arguments_of(node)[BIAS], shape_of(node)[1]
    set_argument(node, BIAS, tuning.constant(like, shifted, bias, shift, channels))


def _choose(tuning: Tuning, node: fx.Node, kernel: Sequence[IntExpr]) -> None:
    """Lets another function compute a convolution, whose weight had a shape before."""
    image, weight, bias, *_ = arguments_of(node)
    geometry = _geometry(node)
    stride, padding, dilation, transposed, more, groups = geometry
    channels, *sizes = kernel[1:]
    dense = groups == 1 and not any(padding) and not any(more)
    if dense and not transposed and set(sizes) == {1}:
        right = tuning.constant(weight, of_points, weight)
        wide = keep_packed(tuning, node, right, channels, kernel[0])
        node.target, node.args = convolve_points, (image, right, bias, stride, wide)
    elif dense and transposed and len(sizes) == 2 and sizes == stride and set(dilation) == {1}:
        right = tuning.constant(weight, of_blocks, weight)
        wide = keep_packed(tuning, node, right, kernel[0], channels * prod(sizes))
        node.target, node.args = convolve_apart, (image, right, bias, stride, wide)
    elif len(sizes) == 1 and not transposed:
        others = [1, *stride], [0, *padding], [1, *dilation], False, [0, 0], groups
        _put(tuning, node, convolve_rows, row_channels_last, *others)
        if groups == 1 and dilation == [1]:
            _put_in_windows(tuning, node, *stride, *padding)
    elif len(sizes) == 2 and not transposed and _is_column(image, sizes, node):
        turned = stride[::-1], padding[::-1], dilation[::-1], False, [0, 0], groups
        _put(tuning, node, convolve_columns, column_channels_last, *turned)
    elif len(sizes) == 2 and not transposed and 1 < groups == shape_of(node)[1] and HAS_ONEDNN:
        _put(tuning, node, convolve_channels, channels_last, padding, stride, dilation, groups)
    elif len(sizes) == 2:
        _put(tuning, node, convolve, channels_last, *geometry)


def _is_column(image: fx.Node, sizes: Sequence[IntExpr], node: fx.Node) -> bool:
    """Returns whether a convolution goes along the height of images that have one column."""
    known = "value" in image.meta and sizes[0] != 1
    return known and shape_of(image)[3] == shape_of(node)[3] == 1


def _put(tuning: Tuning, node: fx.Node, function: Any, arrange: Any, *others: Any) -> None:
    image, weight, bias, *_ = arguments_of(node)
    node.target = function
    node.args = (image, tuning.constant(weight, arrange, weight), bias, *others)


def _put_in_windows(tuning: Tuning, node: fx.Node, step: int, zeros: int) -> None:
    """Lets sequences be convolved as products where they are short."""
    sequence, weight, bias, *_ = arguments_of(node)
    matrix = tuning.constant(weight, windows_matrix, weight)
    matrix.meta["bytes"] = 0
    node.target = convolve_windows
    node.args = (sequence, weight, matrix, bias, step, zeros)
