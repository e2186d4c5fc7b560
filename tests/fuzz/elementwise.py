"""Random calls of functions of single elements."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.fuzz.draw import Draw, Step, broadcasts, kind_of


def unary(d: Draw) -> Step:
    function = d.dice.choice(
        (torch.tanh, torch.sigmoid, torch.sin, F.gelu, F.silu, torch.erf, F.softplus, F.elu)
    )
    return Step(function, (d.any("float"),), False)


def exact_unary(d: Draw) -> Step:
    function = d.dice.choice((torch.neg, torch.abs, F.relu, torch.square))
    return Step(function, (d.any("float|int"),))


def clamp(d: Draw) -> Step:
    return Step(lambda x: x.clamp(-1, 1), (d.any("float|int"),))


def discontinuous(d: Draw) -> Step:
    function = d.dice.choice((torch.floor, torch.ceil, torch.sign, torch.round, torch.trunc))
    return Step(function, (d.any("float", exact=True),))


def binary(d: Draw) -> Step:
    a = d.any("float")
    function = d.dice.choice(
        (torch.add, torch.add, torch.sub, torch.mul, torch.mul, torch.maximum, torch.minimum)
    )
    operands = (a, d.partner(a))
    return Step(function, operands if d.chance() else operands[::-1])


def division(d: Draw) -> Step:
    a = d.any("float")
    return Step(lambda x, y: x / (y * y + 1), (a, d.partner(a)))


def scalars(d: Draw) -> Step:
    scalar = d.dice.choice((2, -0.5, 0, 3))
    function: Any = d.dice.choice(
        (
            lambda x: x + scalar,
            lambda x: scalar - x,
            lambda x: x * scalar,
            lambda x: x / (scalar + 0.25),
            lambda x: torch.add(x, x, alpha=scalar),
            lambda x: x**2,
            lambda x: x + x,
            lambda x: x * x,
        )
    )
    return Step(function, (d.any("float|int"),))


def integers(d: Draw) -> Step:
    a = d.any("int")
    function: Any = d.dice.choice(
        (
            torch.add, torch.mul, torch.sub, torch.maximum, torch.bitwise_and,
            lambda x, y: x // (y * y + 1), lambda x, y: x % (y * y + 1),
        )
    )  # fmt: skip
    return Step(function, (a, d.partner(a, "int")))


def compare(d: Draw) -> Step:
    a = d.any("float", exact=True)
    function = d.dice.choice((torch.lt, torch.ge, torch.eq, torch.ne))
    return Step(function, (a, d.partner(a, exact=True)))


def logic(d: Draw) -> Step:
    a = d.any("bool")
    if d.chance(0.3):
        return Step(torch.logical_not, (a,))
    function = d.dice.choice((torch.logical_and, torch.logical_or, torch.logical_xor))
    return Step(function, (a, d.partner(a, "bool")))


def where(d: Draw) -> Step:
    a = d.any("float")
    if d.chance(0.3):
        return Step(lambda x, m: x.masked_fill(m, 2.5), (a, d.partner(a, "bool")))
    return Step(torch.where, (d.partner(a, "bool"), a, d.partner(a)))


def cast(d: Draw) -> Step:
    at = d.any("int|bool|float", exact=True)
    if kind_of(d[at]) == "float" and not bool(torch.isfinite(d[at]).all()):
        raise ValueError("not defined")
    dtype = d.dice.choice((torch.float64, torch.int64, torch.bool, torch.int32))
    return Step(lambda x: x.to(dtype), (at,))


def linear_in_pending(d: Draw) -> Step:
    """What unfinished sums may flow through."""
    at = len(d.writer.tensors) - 1
    if kind_of(d[at]) != "float":
        raise ValueError("no sums")
    other = d.dice.randrange(len(d.writer.tensors))
    function: Any = d.dice.choice(
        (
            lambda x: x * -2,
            lambda x: x / 4,
            lambda x: x.reshape(-1),
            lambda x: x.transpose(0, -1),
            lambda x: x.sum(0),
            lambda x: x.sum(-1, keepdim=True),
            lambda x: torch.cat([x, x * 2], 0),
            lambda x: x[:1],
            lambda x: x.flip(0),
            lambda x: x - x.mean(-1, keepdim=True),
            lambda x: x.to(torch.float32),
            lambda x: F.pad(x, (1, 0)),
            lambda x: x.cumsum(0),
            lambda x: x.masked_fill(x.new_ones(x.shape[-1]).bool(), 0.0),
        )
    )
    if d.chance(0.4) and broadcasts(d[at].shape, d[other].shape):
        both: Any = d.dice.choice((torch.add, torch.sub, torch.mul))
        return Step(both, (at, other), False)
    return Step(function, (at,), False)
