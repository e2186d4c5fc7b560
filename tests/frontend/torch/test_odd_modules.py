"""Modules that are odd: very deep, very long, or asking for more than there is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import capture


class Around(nn.Module):
    """A module around another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + 1
        return out


class Long(nn.Module):
    """As many ops as it is told."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = x + 1.0
        return x


class Huge(nn.Module):
    """Makes a tensor of terabytes up."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(10**12).sum()


def nested(depth: int) -> nn.Module:
    module: nn.Module = nn.Identity()
    for _ in range(depth):
        module = Around(module)
    return module


def test_deep_modules() -> None:
    assert len(capture(nested(50), (torch.ones(2),)).program.main.ops) == 50
    with pytest.raises(InvalidInputError, match="Around: its modules, or its inputs, are nested"):
        capture(nested(2000), (torch.ones(2),))


def test_deep_inputs() -> None:
    inputs: object = torch.ones(2)
    for _ in range(2000):
        inputs = (inputs,)
    with pytest.raises(InvalidInputError, match="nested"):
        capture(nn.Identity(), inputs)


def test_many_ops() -> None:
    """More than Python's stack has calls: nothing walks a chain by recursion."""
    step = autopar.compile(Long(1500), (torch.ones(4),), mesh="2", strategy="none")
    assert len(step.serial.main.ops) == 1500


def test_a_huge_constant_of_forward() -> None:
    with pytest.raises(InvalidInputError) as error:
        autopar.compile(Huge(), (torch.ones(4),), mesh="2", strategy="none")
    assert "test_odd_modules.py:" in str(error.value)
    assert "takes 4000000000000 bytes (3.6 TiB)" in str(error.value)
