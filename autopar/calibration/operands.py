"""Operands of calls that are measured, and the calls with what they move."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autopar.calibration.meter import Call

COLUMNS = 256
"""Of the rows that reductions, norms and lookups are about."""

NUMBERS = 1 << 12
"""How many numbers are drawn: as many as a tensor needs take longer than what is measured."""

aten = torch.ops.aten


@dataclass(frozen=True)
class Kernel:
    """A call to measure.

    Attributes:
        call: It.
        nbytes: What it reads and writes.
        flops: Its operations, of a product.
        times: How many ops of a program it carries out.
    """

    call: Call
    nbytes: int
    flops: float = 0.0
    times: int = 1


@dataclass(frozen=True)
class Maker:
    """Makes operands.

    Attributes:
        device: Where.
        dtype: Of what is computed with.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32

    def floats(self, *shape: int) -> Tensor:
        """Returns numbers around 0, the same ones again and again."""
        count = math.prod(shape)
        some = torch.randn(min(count, NUMBERS), device=self.device).to(self.dtype)
        return some.repeat(-(-count // NUMBERS))[:count].view(shape)

    def indexes(self, below: int, *shape: int) -> Tensor:
        """Returns integers from 0."""
        return torch.randint(0, below, shape, device=self.device)

    def rows(self, elements: int, columns: int = COLUMNS) -> Tensor:
        """Returns a matrix of as many elements."""
        return self.floats(max(1, elements // columns), columns)


def size_of(*tensors: object) -> int:
    """Returns the bytes of tensors, and of those that they hold."""
    return sum(each.nbytes for each in tree_leaves(tensors) if isinstance(each, Tensor))


def moving(call: Callable[..., object], *read: object) -> Kernel:
    """Returns the kernel of a call that reads its arguments, and writes its results."""
    return Kernel(lambda: call(*read), size_of(read, call(*read)))
