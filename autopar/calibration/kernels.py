"""Kernels: calls of each family of ops that are bound by memory, and what they move.

Each is what the runtime calls, on tensors of about as many elements as are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import silu

from autopar.calibration.operands import COLUMNS, Kernel, Maker, aten, moving, size_of
from autopar.ir.ops.families import ELEMENTWISE
from autopar.runtime.kernels.random_ops import rand

CLASSES = 4096
"""Columns of scores of which one is right."""

LIST = 4
"""Tensors that one update of parameters is about."""

Make = Callable[[Maker, int], Kernel]
"""Makes a call on about as many elements."""


def _elementwise(make: Maker, elements: int) -> Kernel:
    return moving(torch.mul, make.floats(elements), make.floats(elements))


def _transcendental(make: Maker, elements: int) -> Kernel:
    return moving(torch.tanh, make.floats(elements))


def _exponential(make: Maker, elements: int) -> Kernel:
    return moving(silu, make.floats(elements))


def _selection(make: Maker, elements: int) -> Kernel:
    x, other = make.floats(elements), make.floats(elements)
    return moving(torch.where, x > 0, x, other)


def _comparison(make: Maker, elements: int) -> Kernel:
    return moving(torch.le, make.floats(elements), make.floats(elements))


def _copy(make: Maker, elements: int) -> Kernel:
    return moving(torch.clone, make.floats(elements))


def _fill(make: Maker, elements: int) -> Kernel:
    return moving(lambda: torch.zeros(elements, device=make.device))


def _reduction(make: Maker, elements: int) -> Kernel:
    return moving(lambda x: x.sum(0), make.rows(elements))


def _softmax(make: Maker, elements: int) -> Kernel:
    return moving(lambda x: x.softmax(-1), make.rows(elements))


def _safe_softmax(make: Maker, elements: int) -> Kernel:
    return moving(lambda x: aten._safe_softmax.default(x, -1), make.rows(elements))


def _softmax_backward(make: Maker, elements: int) -> Kernel:
    backward = aten._softmax_backward_data.default
    grad, out = make.rows(elements), make.rows(elements)
    return moving(lambda g, o: backward(g, o, -1, o.dtype), grad, out)


def _log_softmax(make: Maker, elements: int) -> Kernel:
    return moving(lambda x: x.log_softmax(-1), make.rows(elements, CLASSES))


def _log_softmax_backward(make: Maker, elements: int) -> Kernel:
    backward = aten._log_softmax_backward_data.default
    grad, out = make.rows(elements, CLASSES), make.rows(elements, CLASSES)
    return moving(lambda g, o: backward(g, o, -1, o.dtype), grad, out)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = aten.native_layer_norm.default(x, [COLUMNS], weight, bias, 1e-5)
    return found


def _normalization(make: Maker, elements: int) -> Kernel:
    return moving(_layer_norm, make.rows(elements), make.floats(COLUMNS), make.floats(COLUMNS))


def _normalization_backward(make: Maker, elements: int) -> Kernel:
    x, weight, bias = make.rows(elements), make.floats(COLUMNS), make.floats(COLUMNS)
    _, mean, scale = _layer_norm(x, weight, bias)

    def backward(*given: Tensor) -> object:
        grad, x, mean, scale, weight, bias = given
        return aten.native_layer_norm_backward.default(
            grad, x, [COLUMNS], mean, scale, weight, bias, [True, True, True]
        )

    return moving(backward, make.rows(elements), x, mean, scale, weight, bias)


IMAGES, CHANNELS = 8, 32


def _images(make: Maker, elements: int) -> Tensor:
    """Returns images of as many elements, as far as these are enough for one pixel."""
    side = max(4, round((elements / IMAGES / CHANNELS) ** 0.5))
    return make.floats(IMAGES, CHANNELS, side, side)


def _batch_norm_call(x: Tensor, *stored: Tensor) -> tuple[Tensor, ...]:
    weight, bias, mean, variance = stored
    found: tuple[Tensor, ...] = aten._native_batch_norm_legit_functional.default(
        x, weight, bias, mean, variance, True, 0.1, 1e-5
    )
    return found


def _batch_norm(make: Maker, elements: int) -> Kernel:
    stored = (make.floats(CHANNELS) for _ in range(4))
    return moving(_batch_norm_call, _images(make, elements), *stored)


def _batch_norm_backward(make: Maker, elements: int) -> Kernel:
    x, grad = _images(make, elements), _images(make, elements)
    weight, *stored = (make.floats(CHANNELS) for _ in range(4))
    _, mean, scale, *_ = _batch_norm_call(x, weight, *stored)

    def backward(*given: Tensor) -> object:
        grad, x, weight, mean, scale = given
        return aten.native_batch_norm_backward.default(
            grad, x, weight, None, None, mean, scale, True, 1e-5, [True, True, True]
        )

    return moving(backward, grad, x, weight, mean, scale)


_WINDOW = ([3, 3], [2, 2], [1, 1])


def _pooling(make: Maker, elements: int) -> Kernel:
    pooled = aten.max_pool2d_with_indices.default
    return moving(lambda x: pooled(x, *_WINDOW), _images(make, elements))


def _pooling_backward(make: Maker, elements: int) -> Kernel:
    x, backward = _images(make, elements), aten.max_pool2d_with_indices_backward.default
    grad, at = aten.max_pool2d_with_indices.default(x, *_WINDOW)
    return moving(lambda *g: backward(*g[:2], *_WINDOW, [1, 1], False, g[2]), grad, x, at)


ROWS = 8192
"""Of a table in which is looked up."""


def _embedding(make: Maker, elements: int) -> Kernel:
    table, at = make.floats(ROWS, COLUMNS), make.indexes(ROWS, max(1, elements // COLUMNS))
    call = partial(aten.embedding.default, table, at)
    return Kernel(call, size_of(at) + 2 * size_of(call()))


def _embedding_backward(make: Maker, elements: int) -> Kernel:
    grad, backward = make.rows(elements), aten.embedding_dense_backward.default
    rows = max(1, min(ROWS, len(grad)))
    return moving(
        lambda g, at: backward(g, at, rows, -1, False), grad, make.indexes(rows, len(grad))
    )


def _index(make: Maker, elements: int) -> Kernel:
    x = make.rows(elements)
    return moving(lambda x, at: x[at], x, make.indexes(len(x), len(x)))


def _index_write(make: Maker, elements: int) -> Kernel:
    x, added = make.rows(elements), make.rows(elements)
    at = make.indexes(len(x), len(x))
    return moving(lambda x, at, new: x.index_put([at], new, accumulate=True), x, at, added)


def _gather(make: Maker, elements: int) -> Kernel:
    x = make.rows(elements)
    at = make.indexes(len(x), *x.shape)
    return moving(lambda x, at: x.gather(0, at), x, at)


def _scatter(make: Maker, elements: int) -> Kernel:
    x, added = make.rows(elements), make.rows(elements)
    at = make.indexes(len(x), *x.shape)
    return moving(lambda x, at, added: x.scatter_add(0, at, added), x, at, added)


def _optimizer(make: Maker, elements: int) -> Kernel:
    parameters, grads, first, second = (
        [make.floats(elements) for _ in range(LIST)] for _ in range(4)
    )
    second = [each.square() for each in second]
    steps = [torch.ones((), device=make.device) for _ in range(LIST)]

    def update() -> None:
        aten._fused_adamw_.default(
            parameters,
            grads,
            first,
            second,
            [],
            steps,
            lr=1e-3,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.01,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    written = size_of(parameters, first, second)
    return Kernel(update, (size_of(grads) + 2 * written) // LIST, times=LIST)


def _random(make: Maker, elements: int) -> Kernel:
    seed = torch.zeros((), dtype=torch.int64, device=make.device)
    return moving(lambda: rand(seed, 0, [elements], torch.float32))


MOVING: Mapping[str, Make] = {
    ELEMENTWISE: _elementwise,
    "exponential": _exponential,
    "transcendental": _transcendental,
    "selection": _selection,
    "comparison": _comparison,
    "copy": _copy,
    "fill": _fill,
    "reduction": _reduction,
    "softmax": _softmax,
    "safe_softmax": _safe_softmax,
    "softmax_backward": _softmax_backward,
    "log_softmax": _log_softmax,
    "log_softmax_backward": _log_softmax_backward,
    "normalization": _normalization,
    "normalization_backward": _normalization_backward,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
    "pooling": _pooling,
    "pooling_backward": _pooling_backward,
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "index": _index,
    "index_write": _index_write,
    "gather": _gather,
    "scatter": _scatter,
    "optimizer": _optimizer,
    "random": _random,
}
"""How to measure each family that is bound by memory."""
