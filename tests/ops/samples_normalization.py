"""Samples of softmax and normalizations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from tests.ops.sample import Sample, b, f, s

MASKS = ([True] * 3, [True, False, False], [False, True, True], [False, False, True])


def samples() -> Iterator[Sample]:
    """Yields the samples."""
    yield from softmax()
    yield from layer_norms()
    yield from group_norms()
    yield from batch_norms()
    yield from batch_norm_gradients()


def softmax() -> Iterator[Sample]:
    """Yields samples of softmax."""
    for name in ("_softmax", "_log_softmax"):
        yield s(name, f(3, 4, 5), -1, False)
        yield s(name, f(3, 4, 5), 1, False)
        yield s(name, f(3, 4, dtype=torch.bfloat16), 0, False)
        grad, out = f(3, 4), torch.softmax(f(4, 3).T, 1)
        yield s(f"{name}_backward_data", grad, out, 1, torch.float64)
    yield s("softmax.int", f(3, 4), 1)
    yield s("softmax.int", f(3, 4, dtype=torch.float32), 1, torch.float64)
    yield s("log_softmax.int", f(3, 4), -1)
    for x in (f(3, 4), f(3, 4, dtype=torch.float16), SPECIAL):
        for dim in (-1, 0):
            for name in ("_softmax", "_log_softmax"):
                yield s(name, x, dim, False)
            yield s("_safe_softmax", x, dim)
    scores = f(2, 3, 4, 5)
    yield s("_masked_softmax", scores, b(2, 3, 4, 5), 3, 2)
    yield s("_masked_softmax", scores, b(2, 3, 4, 5), 1, 2)
    yield s("_masked_softmax", f(2, 3, 4, 4), b(4, 4), None, 0)
    yield s("_masked_softmax", f(2, 3, 4, 4), b(2, 4), 3, 1)
    mask = b(2, 3, 4, 5)
    out = torch.ops.aten._masked_softmax(scores, mask, 3, 2)
    yield s("_masked_softmax_backward", f(2, 3, 4, 5, low=-1), out, mask, 3)


SPECIAL = torch.tensor(
    [
        [1.0, math.nan, 2.0, 0.0],
        [1.0, -math.inf, 2.0, 0.0],
        [-math.inf] * 4,
        [1.0, math.inf, 2.0, -3.0],
    ]
)
"""Rows with NaN and infinities."""


def layer_norms() -> Iterator[Sample]:
    """Yields samples of layer and RMS normalization."""
    x, w, half = f(3, 4, 6), f(6), torch.bfloat16
    yield s("native_layer_norm", x, [6], w, f(6), 1e-5)
    yield s("native_layer_norm", x, [6], None, w, 1e-5)
    yield s("native_layer_norm", x, [4, 6], None, None, 1e-5)
    yield s("native_layer_norm", f(3, 4, 6, dtype=torch.float32), [6], None, None, 1e-5)
    yield s("native_layer_norm", x.to(half), [6], w.to(half), w.to(half), 1e-5)
    yield s("native_layer_norm", f(6), [6], w, w, 1e-5)
    yield s("layer_norm", x, [6], w, f(6))
    yield s("layer_norm", x, [6])
    _, mean, rstd = torch.native_layer_norm(x, [6], w, w, 1e-5)
    grad = reversed_dims(3, 4, 6)
    for mask in MASKS:
        yield s("native_layer_norm_backward", grad, x, [6], mean, rstd, w, w, mask)
    none = [True, False, False]
    yield s("native_layer_norm_backward", grad, x, [6], mean, rstd, None, None, none)
    _, mean, rstd = torch.native_layer_norm(x, [4, 6], f(4, 6), None, 1e-5)
    backward = "native_layer_norm_backward"
    yield s(backward, grad, x, [4, 6], mean, rstd, f(4, 6), None, [True, True, False])
    _, mean, rstd = torch.native_layer_norm(f(6), [6], w, w, 1e-5)
    yield s(backward, f(6, low=-1), f(6), [6], mean, rstd, w, w, [True] * 3)
    yield s("rms_norm", x, [6], w, 1e-5)
    yield s("rms_norm", x, [4, 6])
    yield s("_fused_rms_norm", x, [6], w, 1e-5)


def reversed_dims(*shape: int) -> Tensor:
    """Returns floats that are no function of those of the same shape."""
    return f(*reversed(shape)).permute(*reversed(range(len(shape)))).contiguous()


def group_norms() -> Iterator[Sample]:
    """Yields samples of group normalization."""
    for x, w, groups in ((f(2, 6, 5), f(6), 3), (f(3, 4, 2, 3), None, 2), (f(2, 6), f(6), 2)):
        sizes = (*x.shape[:2], x[0, 0].numel(), groups)
        yield s("native_group_norm", x, w, w, *sizes, 1e-5)
        _, mean, rstd = torch.native_group_norm(x, w, w, *sizes, 1e-5)
        for mask in MASKS if w is not None else MASKS[1:2]:
            grad = reversed_dims(*x.shape)
            yield s("native_group_norm_backward", grad, x, mean, rstd, w, *sizes, mask)
    half = f(2, 6, 5, dtype=torch.bfloat16)
    yield s("native_group_norm", half, None, None, 2, 6, 5, 3, 1e-5)


def batch_norms() -> Iterator[Sample]:
    """Yields samples of batch normalization."""
    x, w, mean, var = f(4, 3, 5), f(3), f(3, low=-1), f(3, low=0.5)
    yield s("_native_batch_norm_legit_no_training", x, w, w, mean, var, 0.1, 1e-5)
    yield s("_native_batch_norm_legit_no_training", f(4, 3), None, None, mean, var, 0.1, 1e-5)
    yield s("_batch_norm_no_update", x, w, w, mean, var, 0.1, 1e-5)
    yield s("native_batch_norm", x, w, w, mean, var, False, 0.1, 1e-5)
    yield s("native_batch_norm", x, w, w, None, None, True, 0.1, 1e-5)
    for image in (x, f(5, 3), f(2, 3, 2, 3)):
        for training in (True, False):
            args = (image, w, f(3, low=0), mean, var, training, 0.3, 1e-5)
            yield s("_native_batch_norm_legit_functional", *args)
        yield s("_batch_norm_with_update_functional", image, w, w, mean, var, 0.3, 1e-5)
    yield s("batch_norm", x, w, w, mean, var, False, 0.1, 1e-5, False)
    yield s("batch_norm", x, w, w, None, None, True, 0.1, 1e-5, False)
    yield s("_native_batch_norm_legit.no_stats", x, w, w, True, 0.1, 1e-5)
    half = x.to(torch.bfloat16)
    yield s("_native_batch_norm_legit.no_stats", half, w.float(), w.float(), True, 0.1, 1e-5)


def batch_norm_gradients() -> Iterator[Sample]:
    """Yields samples of the gradient of batch normalization."""
    w, mean, var = f(3), f(3, low=-1), f(3, low=0.5)
    reserve, unsaved = torch.empty(0, dtype=torch.uint8), f(0)
    for x in (f(4, 3, 5), f(5, 3), f(2, 3, 2, 3)):
        grad = reversed_dims(*x.shape)
        _, saved, inverse = torch.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)
        for mask in MASKS:
            args = (grad, x, w, None, None, saved, inverse, True, 1e-5, mask)
            yield s("native_batch_norm_backward", *args)
            given = (grad, x, w, mean, var, None, None, False, 1e-5, mask)
            yield s("native_batch_norm_backward", *given)
        given = (grad, x, w, mean, var, unsaved, unsaved, False, 1e-5, [True] * 3)
        yield s("native_batch_norm_backward", *given)
        args = (grad, x, w, mean, var, saved, inverse, True, 1e-5, [True] * 3, reserve)
        yield s("batch_norm_backward", *args)
        args = (grad, x, w, mean, var, None, None, False, 1e-5, [True] * 3, reserve)
        yield s("batch_norm_backward", *args)
    args = (f(4, 3), f(3, 4).T.contiguous(), None, None, None, f(3), f(3), True, 1e-5)
    yield s("native_batch_norm_backward", *args, [True, False, False])
