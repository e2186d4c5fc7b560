"""A call of a parallel module that is refused, in its backward pass too, leaves nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.base.errors import InvalidInputError


class Halved(torch.autograd.Function):
    """Asks for the values of gradients."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient / 2 if gradient.abs().max() > 5 else gradient


class Model(nn.Module):
    """Counts its calls, draws numbers, and has conditions on its input and on gradients."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        hidden = nn.functional.dropout(self.norm(x), 0.5, self.training)
        if x.sum() > 1000:
            hidden = hidden * 2
        y: Tensor = Halved.apply(self.linear(hidden))
        return y.sigmoid()


def parallel() -> autopar.ParallelModule:
    torch.manual_seed(0)
    return autopar.parallelize(Model(), (torch.ones(8, 4),), mesh="1")


def state(module: autopar.ParallelModule) -> tuple[dict[str, Tensor], int]:
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return buffers, module.random_calls


def assert_left(module: autopar.ParallelModule, wanted: tuple[dict[str, Tensor], int]) -> None:
    buffers, calls = state(module)
    torch.testing.assert_close(buffers, wanted[0], rtol=0, atol=0)
    assert calls == wanted[1]


def refused(loss: Tensor) -> None:
    with pytest.raises(InvalidInputError, match="what this line asks for"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_a_refused_backward_pass_takes_back_what_the_forward_pass_wrote() -> None:
    module, other = parallel(), parallel()
    x = torch.randn(8, 4)
    module(x).sum().backward()
    before = state(module)
    refused(module(x).sum() * 1000)
    assert_left(module, before)
    refused(module(x).sum() * 1000)
    assert_left(module, before)
    found = module(x)
    other(x)
    assert torch.equal(found, other(x))
    assert_left(module, state(other))


def test_a_refused_call_has_drawn_nothing() -> None:
    module = parallel()
    module(torch.ones(8, 4))
    before = state(module)
    with pytest.raises(InvalidInputError, match="what this line asks for"):
        module(torch.full((8, 4), 1000.0))
    assert_left(module, before)


def test_what_later_calls_wrote_stays() -> None:
    module = parallel()
    x = torch.randn(8, 4)
    first = module(x).sum() * 1000
    module(x)
    after = state(module)
    refused(first)
    assert_left(module, after)
