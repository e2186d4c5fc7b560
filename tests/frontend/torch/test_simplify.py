"""Ops that undo or repeat one another are gone, and the graph computes what it did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import autopar
from autopar.frontend.torch.capture.simplify import simplify
from autopar.runtime.training.opening import open_trainer


def traced(x: Tensor) -> fx.GraphModule:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        flat = x.view(6, 4).view(24).view(2, 3, 4)
        product = torch.mm(x.view(6, 4), x.view(6, 4).t())
        return flat + 1, product.t().t(), x.view(4, 6).t()

    return make_fx(function)(x)


def test_only_what_changes_something_is_left() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    module = traced(x)
    expected = module(x)
    simplify(module.graph)
    module.recompile()
    names = [node.target._opname for node in module.graph.nodes if node.op == "call_function"]
    assert sorted(names) == ["add", "mm", "t", "t", "view", "view", "view"]
    for found, known in zip(module(x), expected, strict=True):
        assert torch.equal(found, known)


def test_what_is_taken_apart_and_put_together_is_what_it_was() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        even, uneven = x.split(2), x.split([1, 2, 3, 4], -1)
        rows = torch.cat([x[:1], x[1:4], x[4:]])
        other = torch.cat(even[::-1]), torch.cat(uneven[1:], 1), torch.cat([x[:, :4], x[:, 5:]], 1)
        return torch.cat(even) + 1, torch.cat(uneven, 1) + 2, rows + 3, *other

    x = torch.arange(50.0).view(5, 10)
    module = make_fx(function)(x)
    expected = module(x)
    simplify(module.graph)
    module.recompile()
    names = [node.target.__name__ for node in module.graph.nodes if node.op == "call_function"]
    assert sum(name.startswith("cat") for name in names) == 3
    for found, known in zip(module(x), expected, strict=True):
        assert torch.equal(found, known)


def test_conjugates_of_numbers_are_numbers(tmp_path: Path) -> None:
    """The gradient of a product with a complex number asks for its conjugate."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.view_as_real(torch.fft.fft(self.up(x)) * (1 + 2j)).flatten(1)

    torch.manual_seed(0)
    model, batch = Model().double(), (torch.rand(6, 8).double(), torch.rand(6, 16).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss = nn.functional.mse_loss
    autopar.compile(model, batch, mesh="2", strategy="data", loss=loss, optimizer=optimizer).save(
        tmp_path / "build"
    )
    with open_trainer(tmp_path / "build", virtual=True) as trainer:
        for _ in range(3):
            value = loss(model(batch[0]), batch[1])
            assert float(trainer.step(batch)) == pytest.approx(value.item(), rel=1e-12)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
