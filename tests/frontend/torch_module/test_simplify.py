"""Ops that undo or repeat one another are gone, and the graph computes what it did."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from autopar.frontend.torch.capture.simplify import simplify


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
