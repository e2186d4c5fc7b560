"""Random calls of functions that sum or go along dimensions: products, norms, convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.fuzz.draw import Draw, Step, kind_of


def reduction(d: Draw) -> Step:
    at = d.any("float|int")
    dims, keep = d.dims(at), d.chance()
    function = d.dice.choice((torch.sum, torch.amax, torch.amin, torch.sum))
    if function is torch.sum and d.chance(0.2):
        return Step(torch.sum, (at,), kind_of(d[at]) == "int")
    exact = function is not torch.sum or kind_of(d[at]) == "int"
    return Step(lambda x: function(x, dims, keepdim=keep), (at,), exact)


def statistics(d: Draw) -> Step:
    at = d.any("float", 1)
    dims, keep = d.dims(at), d.chance()
    function: Any = d.dice.choice(
        (
            lambda x: x.mean(dims, keepdim=keep),
            lambda x: x.mean(),
            lambda x: x.var(dims, keepdim=keep, correction=0),
            lambda x: torch.var_mean(x, dims, keepdim=keep, correction=0),
            lambda x: torch.logsumexp(x, dims, keepdim=keep),
            lambda x: torch.linalg.vector_norm(x, 2, dims, keepdim=keep),
            lambda x: torch.linalg.vector_norm(x, 1, dims, keepdim=keep),
        )
    )
    return Step(function, (at,), False)


def reduction_of_one_dim(d: Draw) -> Step:
    at = d.any("float|int|bool", 1)
    dim, keep = d.dim(at), d.chance()
    if kind_of(d[at]) == "bool":
        function = d.dice.choice((torch.any, torch.all))
        return Step(lambda x: function(x, dim, keepdim=keep), (at,))
    return Step(lambda x: x.prod(dim, keepdim=keep), (at,), kind_of(d[at]) == "int")


def picking(d: Draw) -> Step:
    at = d.any("float|int", 1, exact=True)
    dim, keep = d.dim(at), d.chance()
    function: Any = d.dice.choice(
        (
            lambda x: x.argmax(dim, keepdim=keep),
            lambda x: x.argmin(dim, keepdim=keep),
            lambda x: x.max(dim, keepdim=keep),
            lambda x: x.min(dim, keepdim=keep),
            lambda x: x.argmax(),
            lambda x: x.max(),
        )
    )
    return Step(function, (at,))


def sorting(d: Draw) -> Step:
    at = d.any("float", 1, exact=True)
    dim = d.dim(at)
    if d.chance():
        k = d.dice.randint(1, max(1, d[at].shape[dim]))
        return Step(lambda x: torch.topk(x, k, dim), (at,))
    return Step(lambda x: torch.sort(x, dim, stable=True), (at,))


def scan(d: Draw) -> Step:
    at = d.any("float|int", 1)
    dim = d.dim(at)
    if d.chance(0.2):
        return Step(lambda x: torch.cummax(x, dim)[0], (d.any("float", 1, exact=True),))
    return Step(lambda x: torch.cumsum(x, dim), (at,), kind_of(d[at]) == "int")


def softmax(d: Draw) -> Step:
    at = d.any("float", 1)
    dim = d.dim(at)
    function = d.dice.choice((torch.softmax, torch.log_softmax))
    return Step(lambda x: function(x, dim), (at,), False)


def normalization(d: Draw) -> Step:
    at = d.any("float", 1)
    shape = d[at].shape
    if d.chance() or len(shape) < 2:
        tail = list(shape[-d.dice.randint(1, len(shape)) :])
        if d.chance(0.3):
            return Step(lambda x: F.layer_norm(x, tail), (at,), False)
        affine = (d.source(*tail), d.source(*tail))
        return Step(lambda x, w, b: F.layer_norm(x, tail, w, b), (at, *affine), False)
    channels = shape[1]
    if d.chance():
        groups = d.dice.choice([n for n in range(1, channels + 1) if channels % n == 0])
        affine = (d.source(channels), d.source(channels))
        return Step(lambda x, w, b: F.group_norm(x, groups, w, b), (at, *affine), False)
    others = tuple(d.source(channels) for _ in range(4))
    return Step(
        lambda x, m, v, w, b: F.batch_norm(x, m.detach(), (v * v).detach(), w, b),
        (at, *others),
        False,
    )


def vectors(d: Draw) -> Step:
    at = d.any("float", 1)
    vector = d.source(d[at].shape[-1])
    if d[at].ndim == 1:
        return Step(torch.dot, (at, vector), False)
    return Step(torch.matmul, (at, vector), False)


def matmul(d: Draw) -> Step:
    at = d.any("float", 2)
    shape = d[at].shape
    columns = d.writer.shape(1)
    fits = [
        other
        for other, it in enumerate(d.writer.tensors)
        if kind_of(it) == "float" and it.ndim and it.shape[max(0, it.ndim - 2)] == shape[-1]
    ]
    choice = d.dice.random()
    if fits and choice < 0.4:
        return Step(torch.matmul, (at, d.dice.choice(fits)), False)
    if choice < 0.7 or len(shape) < 3:
        weights = (d.source(*columns, shape[-1]), d.source(*columns))
        count = d.dice.randint(1, 2)
        return Step(F.linear, (at, *weights[:count]), False)
    return Step(torch.matmul, (at, d.source(*shape[:-2], shape[-1], *columns)), False)


def gram(d: Draw) -> Step:
    return Step(lambda x: x @ x.transpose(-1, -2), (d.any("float", 2),), False)


def attention(d: Draw) -> Step:
    batch, heads, queries, keys, width = (d.writer.shape(1)[0] for _ in range(5))
    operands = tuple(d.source(batch, heads, n, width) for n in (queries, keys, keys))
    causal = d.chance()
    return Step(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), operands, False
    )


def convolution(d: Draw) -> Step:
    rank = d.dice.choice((1, 2))
    fits = [
        at
        for at, it in enumerate(d.writer.tensors)
        if it.ndim == rank + 2 and kind_of(it) == "float"
    ]
    at = d.dice.choice(fits) if fits and d.chance(0.8) else d.source(*d.writer.shape(rank + 2))
    channels = d[at].shape[1]
    groups = d.dice.choice([n for n in range(1, channels + 1) if channels % n == 0])
    kernel = [d.dice.choice((1, 2, 3)) for _ in range(rank)]
    stride, padding = d.dice.choice((1, 1, 2)), d.dice.choice((0, 1, 2))
    made = d.dice.choice((1, 2, 3))
    transposed = d.chance(0.3)
    shape = (
        (channels, made, *kernel) if transposed else (groups * made, channels // groups, *kernel)
    )
    operands = [at, d.source(*shape)]
    if d.chance():
        operands.append(d.source(groups * made))
    if transposed:
        call = F.conv_transpose1d if rank == 1 else F.conv_transpose2d
        return Step(
            lambda x, w, b=None: call(x, w, b, stride, padding, 0, groups), tuple(operands), False
        )
    convolve = F.conv1d if rank == 1 else F.conv2d
    dilation = d.dice.choice((1, 1, 2))
    return Step(
        lambda x, w, b=None: convolve(x, w, b, stride, padding, dilation, groups),
        tuple(operands),
        False,
    )


def pooling(d: Draw) -> Step:
    rank = d.dice.choice((1, 2))
    at = d.any("float", 3)
    if d[at].ndim != rank + 2:
        at = d.source(*d.writer.shape(rank + 2))
    kernel, stride = d.dice.choice((2, 3)), d.dice.choice((1, 2, 3))
    average = F.avg_pool1d if rank == 1 else F.avg_pool2d
    largest = F.max_pool1d if rank == 1 else F.max_pool2d
    padding = d.dice.choice((0, 1))
    function: Any = d.dice.choice(
        (
            lambda x: average(x, kernel, stride, padding, ceil_mode=True),
            lambda x: average(x, kernel, stride, padding, count_include_pad=False),
            lambda x: largest(x, kernel, stride, padding),
            lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
            lambda x: F.adaptive_avg_pool1d(x, 2) if rank == 1 else F.adaptive_avg_pool2d(x, 3),
        )
    )
    return Step(function, (at,), False)


def image(d: Draw) -> Step:
    at = d.any("float", 4)
    if d[at].ndim != 4:
        at = d.source(*d.writer.shape(4))
    function: Any = d.dice.choice(
        (
            lambda x: F.unfold(x, 2),
            lambda x: F.pixel_shuffle(x, 2),
            lambda x: F.pixel_unshuffle(x, 2),
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            lambda x: F.channel_shuffle(x, 2),
            lambda x: F.instance_norm(x),
        )
    )
    return Step(function, (at,), False)


def loss(d: Draw) -> Step:
    at = d.any("float", 2)
    classes = d[at].shape[1]
    shape = [n for dim, n in enumerate(d[at].shape) if dim != 1]
    target = d.source(*shape, kind="index", bound=classes)
    reduction = d.dice.choice(("mean", "sum", "none"))
    return Step(lambda x, t: F.cross_entropy(x, t, reduction=reduction), (at, target), False)


def contraction(d: Draw) -> Step:
    a, b, c, e = (d.writer.shape(1)[0] for _ in range(4))
    text, left, right = d.dice.choice(
        (
            ("abc,cde->abde", (a, b, c), (c, e, b)),
            ("abc,abd->acd", (a, b, c), (a, b, e)),
            ("abc,dc->adb", (a, b, c), (e, c)),
            ("a,b->ab", (a,), (b,)),
            ("abcd,abed->abce", (a, b, c, e), (a, b, a, e)),
        )
    )
    fits = [at for at, it in enumerate(d.writer.tensors) if it.shape == left]
    first = d.dice.choice(fits) if fits else d.source(*left)
    return Step(lambda x, y: torch.einsum(text, x, y), (first, d.source(*right)), False)


def project(d: Draw) -> Step:
    """A matrix product whose sum is often split: what follows it, sees pending values."""
    at = d.source(*d.writer.shape(d.dice.randint(2, 3)))
    return Step(torch.matmul, (at, d.source(d[at].shape[-1], d.dice.choice((4, 6, 12)))), False)
