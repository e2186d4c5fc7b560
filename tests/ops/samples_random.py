"""Sample calls of random ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.ops.sample import Sample, f

SEED = torch.tensor(11)


def drawn(name: str, *tensors: Any, number: int = 0, **args: Any) -> Sample:
    """Returns a sample of a random op: what it reads, and its other arguments."""
    self = {"self": tensors[0]} if tensors else {}
    return Sample(f"autopar.{name}", {**self, "seed": SEED, "number": number, **args})


def samples() -> Iterator[Sample]:
    """Yields samples of all random ops."""
    f32, f64 = torch.float32, torch.float64
    for size in ((7,), (4, 6), (2, 3, 5), (3, 1, 4), ()):
        yield drawn("rand", size=size, dtype=f32)
        yield drawn("randn", size=size, dtype=f64, number=3)
    yield drawn("rand", size=(4, 6), dtype=torch.bfloat16, low=-2.0, high=3.0)
    yield drawn("randn", size=(4, 6), dtype=f64, mean=f(4, 1), std=f(6, low=0.5))
    yield drawn("randn", size=(4, 6), dtype=f32, mean=2.0, std=0.5)
    yield drawn("randint", low=-3, high=9, size=(4, 6), dtype=torch.int64)
    yield drawn("randint", low=0, high=1 << 40, size=(4, 6), dtype=torch.int64)
    yield drawn("bernoulli_p", size=(4, 6), p=0.4, dtype=f32)
    yield drawn("exponential", size=(4, 6), dtype=f32, lambd=2.0)
    yield drawn("cauchy", size=(4, 6), dtype=f32)
    yield drawn("log_normal", size=(4, 6), dtype=f64)
    yield drawn("geometric", size=(4, 6), p=0.3, dtype=f32)
    for shape in ((7,), (4, 6), (2, 3, 5)):
        yield drawn("bernoulli", f(*shape, low=0.0, high=1.0))
        yield drawn("dropout", f(*shape), p=0.4)
    yield drawn("rrelu", f(4, 6))
    yield drawn("permutation", n=9, dtype=torch.int64)
    for replacement in (False, True):
        weights = f(5, 6, low=0.1)
        yield drawn("multinomial", weights, num_samples=4, replacement=replacement)
        yield drawn("multinomial", weights[0], num_samples=4, replacement=replacement)
