"""Random calls of functions that move, look up, write or create elements."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.fuzz.draw import Draw, Step


def view(d: Draw) -> Step:
    at = d.any()
    shape = list(d[at].shape)
    if d.chance(0.3):
        return Step(lambda x: x.reshape(-1), (at,))
    if d.chance() and len(shape) > 1:
        first = d.dice.randrange(len(shape) - 1)
        last = d.dice.randint(first + 1, len(shape) - 1)
        return Step(lambda x: x.flatten(first, last), (at,))
    dim = d.dice.randrange(len(shape))
    factors = [n for n in range(1, shape[dim] + 1) if shape[dim] % n == 0]
    major = d.dice.choice(factors)
    shape[dim : dim + 1] = [major, shape[dim] // major]
    return Step(lambda x: x.reshape(shape), (at,))


def reshape_anyhow(d: Draw) -> Step:
    at = d.any(rank=1)
    left, shape = d[at].numel(), []
    while left > 1 and len(shape) < 3:
        shape.append(d.dice.choice([n for n in range(1, left + 1) if left % n == 0]))
        left //= shape[-1]
    shape.append(left)
    return Step(lambda x: x.reshape(shape), (at,))


def permutation(d: Draw) -> Step:
    at = d.any(rank=1)
    order = d.dice.sample(range(d[at].ndim), d[at].ndim)
    return Step(lambda x: x.permute(order), (at,))


def ones(d: Draw) -> Step:
    at = d.any()
    dim = d.dice.randint(0, d[at].ndim)
    if d.chance():
        return Step(lambda x: x.unsqueeze(dim), (at,))
    return Step(lambda x: x.squeeze(dim) if d[at].ndim > dim else x.squeeze(), (at,))


def expansion(d: Draw) -> Step:
    at = d.any()
    count = d.dice.choice((2, 3, 5))
    shape = [count, *(n if n != 1 or d.chance() else count for n in d[at].shape)]
    if d.chance(0.3):
        return Step(lambda x: x.repeat(2, *[1] * x.ndim), (at,))
    return Step(lambda x: x.expand(shape), (at,))


def piece(d: Draw) -> Step:
    at = d.any(rank=1)
    dim = d.dim(at)
    size = d[at].shape[dim]
    first = d.dice.randint(0, max(0, size - 1))
    last = d.dice.randint(first, size)
    if d.chance(0.4):
        return Step(lambda x: x.select(dim, first), (at,))
    step = d.dice.choice((1, 1, 1, 2))
    return Step(lambda x: torch.ops.aten.slice.Tensor(x, dim, first, last, step), (at,))


def split(d: Draw) -> Step:
    at = d.any(rank=1)
    dim = d.dim(at)
    size = d[at].shape[dim]
    choice = d.dice.random()
    if choice < 0.3 and size:
        return Step(lambda x: x.unbind(dim), (at,))
    if choice < 0.6 and size:
        part = d.dice.randint(1, size)
        return Step(lambda x: x.split(part, dim), (at,))
    cut = d.dice.randint(0, size)
    return Step(lambda x: x.split([cut, size - cut], dim), (at,))


def joining(d: Draw) -> Step:
    at = d.any(rank=1)
    dim = d.dim(at)
    same = [
        other
        for other, it in enumerate(d.writer.tensors)
        if it.shape == d[at].shape and it.dtype == d[at].dtype
    ]
    operands = (at, d.dice.choice(same), d.dice.choice(same))[: d.dice.randint(2, 3)]
    if d.chance(0.3):
        return Step(lambda *x: torch.stack(x, dim), operands)
    return Step(lambda *x: torch.cat(x, dim), operands)


def moving(d: Draw) -> Step:
    at = d.any(rank=1)
    dim = d.dim(at)
    if d.chance():
        return Step(lambda x: x.flip(dim), (at,))
    shift = d.dice.randint(-3, 3)
    return Step(lambda x: x.roll(shift, dim), (at,))


def padding(d: Draw) -> Step:
    at = d.any("float", 1)
    pad = [d.dice.choice((0, 1, 2, -1)) for _ in range(2 * d.dice.randint(1, min(2, d[at].ndim)))]
    mode = "constant"
    if d[at].ndim == 3 and d.chance(0.4):
        pad, mode = [abs(n) for n in pad[:2]], d.dice.choice(("reflect", "replicate"))
    return Step(lambda x: F.pad(x, pad, mode), (at,))


def triangle(d: Draw) -> Step:
    diagonal = d.dice.randint(-2, 2)
    function = d.dice.choice((torch.tril, torch.triu))
    return Step(lambda x: function(x, diagonal), (d.any("float|int", 2),))


def embedding(d: Draw) -> Step:
    rows = d.dice.choice((3, 5, 7, 8))
    index = d.source(*d.writer.shape(d.dice.randint(1, 3)), kind="index", bound=rows)
    table = d.source(rows, d.dice.choice((2, 4, 6)))
    return Step(F.embedding, (index, table))


def lookup(d: Draw) -> Step:
    at = d.any("float|int|bool", 1)
    dim = d.dim(at)
    size = d[at].shape[dim]
    if not size:
        raise ValueError("nothing to look up")
    if d.chance():
        index = d.source(d.dice.randint(1, 6), kind="index", bound=size)
        if d.chance():
            where: list[Any] = [slice(None)] * (dim % d[at].ndim)
            return Step(lambda x, i: x[(*where, i)], (at, index))
        return Step(lambda x, i: x.index_select(dim, i), (at, index))
    shape = list(d[at].shape)
    shape[dim] = d.dice.randint(1, 5)
    return Step(lambda x, i: x.gather(dim, i), (at, d.source(*shape, kind="index", bound=size)))


def writing(d: Draw) -> Step:
    at = d.any("float", 1)
    dim = d.dim(at)
    size = d[at].shape[dim]
    shape = list(d[at].shape)
    shape[dim] = d.dice.randint(1, max(1, size))
    if d.chance():
        index, source = d.source(*shape, kind="index", bound=size), d.source(*shape)
        return Step(lambda x, i, s: x.scatter_add(dim, i, s), (at, index, source), False)
    # Indices that are written twice have no defined result.
    rows = torch.randperm(size, generator=d.writer.generator)[: shape[dim]]
    like = [1] * len(shape)
    like[dim] = shape[dim]
    index = d.writer.keep(rows.reshape(like).expand(shape).contiguous(), True)
    d.writer.sources.append(index)
    return Step(lambda x, i, s: x.scatter(dim, i, s), (at, index, d.source(*shape)))


def writing_rows(d: Draw) -> Step:
    at = d.any("float", 1)
    rows, shape = d[at].shape[0], list(d[at].shape)
    shape[0] = d.dice.randint(1, 4)
    index = d.source(shape[0], kind="index", bound=rows)
    operands = (at, index, d.source(*shape))
    if d.chance():
        return Step(lambda x, i, s: x.index_add(0, i, s), operands, False)
    return Step(lambda x, i, s: x.index_put((i,), s, accumulate=True), operands, False)


def constant(d: Draw) -> Step:
    shape = d.writer.shape()
    function: Any = d.dice.choice(
        (
            lambda: torch.full(shape, 1.5, dtype=torch.float64),
            lambda: torch.arange(7),
            lambda: torch.arange(6, dtype=torch.float64).reshape(2, 3),
            lambda: torch.eye(4, dtype=torch.float64),
            lambda: torch.zeros(shape, dtype=torch.int64),
        )
    )
    return Step(function, ())


def one_hot(d: Draw) -> Step:
    return Step(lambda x: (x.unsqueeze(-1) == torch.arange(5)).long(), (d.any("int"),))


def windows(d: Draw) -> Step:
    at = d.any("float", 1)
    dim = d.dim(at)
    function: Any = d.dice.choice(
        (
            lambda x: x.unfold(dim, 2, 1),
            lambda x: x.unfold(dim, 2, 2),
            lambda x: torch.cumprod(x, dim),
            lambda x: torch.logcumsumexp(x, dim),
            lambda x: F.glu(x, dim),
            lambda x: F.normalize(x, dim=dim),
            lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5),
            lambda x: x.repeat_interleave(2, dim),
            lambda x: x.diagonal(0, -1, -2),
            lambda x: x.roll((1, 2), (0, -1)),
            lambda x: x.flip((0, -1)),
        )
    )
    return Step(function, (at,), False)
