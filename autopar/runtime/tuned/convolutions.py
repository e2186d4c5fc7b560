"""Convolutions with what follows them in their weights, on images whose channels are last.

The CPU's kernels of such images need no other order inside, in which they would have to bring
images first; that is what most of the time goes to in nets of small convolutions.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from autopar.ir.ops.shape.view import RESHAPES
from autopar.ir.ops.tuning import CONVOLUTION, NORMALIZED, OVER, SCALED, SHIFTED
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
    convolve_channels,
    convolve_columns,
    convolve_rows,
    inverse_deviation,
    normal_shift,
    row_channels_last,
    scaled,
    shift_behind,
    shifted,
)
from autopar.runtime.tuned.windows import convolve_windows, windows_matrix

WEIGHT, BIAS, TRANSPOSED = 1, 2, 6
"""Positions among the arguments of a convolution."""


def tune_convolutions(tuning: Tuning) -> None:
    """Rewrites the convolutions of a graph whose weights are known."""
    for node in tuning.of_kind((CONVOLUTION,)):
        weight, bias = arguments_of(node)[WEIGHT : BIAS + 1]
        if value_of(node).dtype != DTYPE or not tuning.is_constant(weight):
            continue
        if not tuning.claim(weight):
            continue
        is_known = bias is None or tuning.is_constant(bias)
        if is_known and not arguments_of(node)[TRANSPOSED]:
            while _take_in(tuning, node) or _take_in_before(tuning, node):
                pass
        rank = len(shape_of(node))
        if rank == 4:
            _put_channels_last(tuning, node, weight)
        elif rank == 3 and not arguments_of(node)[TRANSPOSED]:
            _put(tuning, node, convolve_rows, row_channels_last)
            _put_in_windows(tuning, node)


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
    image, weight, _, _, padding, *_ = arguments_of(node)
    if reader_of(image) is not node or kind_of(image) not in SHIFTED | SCALED:
        return False
    given = [arg for arg in arguments_of(image)[:2] if not is_number(arg)]
    numbers = [arg for arg in arguments_of(image)[:2] if is_number(arg)]
    if len(given) != 1 or image.kwargs.get("alpha", 1) != 1 or not same_type(image, given[0]):
        return False
    if kind_of(image) in SCALED:
        set_argument(node, WEIGHT, tuning.constant(weight, scaled, weight, *numbers))
    elif not any(padding):
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


def _scale(tuning: Tuning, node: fx.Node, scale: fx.Node) -> None:
    for at in (WEIGHT, BIAS):
        if (tensor := arguments_of(node)[at]) is not None:
            set_argument(node, at, tuning.constant(tensor, scaled, tensor, scale))


def _shift(tuning: Tuning, node: fx.Node, shift: Any) -> None:
    like = shift if isinstance(shift, fx.Node) else arguments_of(node)[WEIGHT]
    bias, channels = arguments_of(node)[BIAS], shape_of(node)[1]
    set_argument(node, BIAS, tuning.constant(like, shifted, bias, shift, channels))


def _put_channels_last(tuning: Tuning, node: fx.Node, given: fx.Node) -> None:
    image, weight, *_, transposed, _, groups = arguments_of(node)
    if not transposed and _is_column(image, given, node):
        _put(tuning, node, convolve_columns, column_channels_last)
        return
    if not _has_channels_last(tuning, image):
        with tuning.graph.inserting_before(node):
            arranged = tuning.graph.call_function(channels_last, (image,))
        arranged.meta["op"] = node.meta["op"]
        set_argument(node, 0, arranged)
    if not transposed and 1 < groups == shape_of(node)[1] and HAS_ONEDNN:
        _put(tuning, node, convolve_channels, channels_last)
    else:
        set_argument(node, WEIGHT, tuning.constant(weight, channels_last, weight))


def _is_column(image: fx.Node, weight: fx.Node, node: fx.Node) -> bool:
    """Returns whether a convolution goes along the height of images that have one column."""
    if "value" not in image.meta or "value" not in weight.meta:
        return False
    return shape_of(weight)[2] != 1 and shape_of(image)[3] == shape_of(node)[3] == 1


def _has_channels_last(tuning: Tuning, image: Any) -> bool:
    """Returns whether an image is what convolutions with known weights make, element by element."""
    while kind_of(image) in OVER and len(image.all_input_nodes) == 1:
        image = arguments_of(image)[0]
    if kind_of(image) != CONVOLUTION:
        return False
    weight = arguments_of(image)[WEIGHT]
    return tuning.is_constant(weight) and weight.target is channels_last


def _put_in_windows(tuning: Tuning, node: fx.Node) -> None:
    """Lets sequences be convolved as products where they are short."""
    sequence, weight, bias, (step,), (zeros,), (gap,), groups = arguments_of(node)
    if gap != 1 or groups != 1:
        return
    matrix = tuning.constant(weight, windows_matrix, weight)
    matrix.meta["bytes"] = 0
    node.target = convolve_windows
    node.args = (sequence, weight, matrix, bias, step, zeros)


def _put(tuning: Tuning, node: fx.Node, function: Any, arrange: Any) -> None:
    """Lets another function compute a convolution that isn't transposed."""
    image, weight, bias, stride, padding, dilation, _, _, groups = arguments_of(node)
    weight = tuning.constant(weight, arrange, weight)
    node.target = function
    node.args = (image, weight, bias, stride, padding, dilation, groups)
