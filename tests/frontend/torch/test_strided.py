"""Strided views are named by what they show, or left as they are."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import autopar
from autopar.frontend.torch.ops.strided import name_strided_views

aten = torch.ops.aten


def graph_of(target: Any, tensors: list[Tensor], *args: Any) -> fx.GraphModule:
    """Returns one op of tensors, as it is captured."""
    mode = FakeTensorMode()
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{at}") for at in range(len(tensors))]
    fakes = [mode.from_tensor(tensor) for tensor in tensors]
    for node, fake in zip(nodes, fakes, strict=True):
        node.meta["val"] = fake
    node = graph.call_function(target, (*nodes, *args))
    with mode:
        node.meta["val"] = target(*fakes, *args)
    graph.output(node)
    return fx.GraphModule({}, graph)


def named(target: Any, tensors: list[Tensor], *args: Any) -> bool:
    """Asserts that the result stays, and returns whether no strided op is left."""
    module = graph_of(target, tensors, *args)
    expected = module(*tensors)
    name_strided_views(module.graph)
    module.recompile()
    found = module(*tensors)
    assert found.shape == expected.shape
    assert torch.equal(found, expected)
    [result] = module.graph.output_node().args
    assert result.meta["val"].shape == expected.shape  # type: ignore[union-attr]
    kinds = {node.target for node in module.graph.nodes}
    return kinds.isdisjoint((aten.as_strided.default, aten.as_strided_scatter.default))


def dense(sizes: list[int], drawn: random.Random) -> Tensor:
    """Returns a tensor whose dimensions lie in memory in some order."""
    order = drawn.sample(range(len(sizes)), len(sizes))
    stored = torch.arange(torch.Size(sizes).numel()).reshape([sizes[at] for at in order])
    return stored.permute([order.index(at) for at in range(len(sizes))])


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_view_shows(seed: int) -> None:
    drawn = random.Random(seed)
    x = dense([drawn.choice([1, 2, 3, 4]) for _ in range(drawn.randrange(1, 5))], drawn)
    view = x
    for _ in range(drawn.randrange(4)):
        dim = drawn.randrange(view.ndim)
        step = drawn.randrange(3)
        if step == 0:
            view = view.transpose(dim, drawn.randrange(view.ndim))
        elif step == 1 and view.shape[dim] > 1:
            view = view.narrow(dim, drawn.randrange(view.shape[dim] - 1), 1 + drawn.randrange(2))
        elif view.ndim < 6:
            view = view.unsqueeze(dim)
    args = (list(view.shape), list(view.stride()), view.storage_offset())
    assert named(aten.as_strided.default, [x], *args)
    src = torch.randint(100, view.shape)
    whole = view.numel() == x.numel()
    assert named(aten.as_strided_scatter.default, [x, src], *args) == whole
    # The strides of what is written don't count.
    turned = dense(list(view.shape), drawn)
    assert named(aten.as_strided_scatter.default, [x, turned], *args) == whole


@pytest.mark.parametrize(
    ("sizes", "strides", "offset"),
    [
        ([3, 3], [1, 1], 0),
        ([2, 2], [3, 1], 1),
        ([2, 6], [0, 1], 0),
        ([3], [4], 0),
        ([2, 5], [5, 1], 1),
    ],
)
def test_what_else_is_left(sizes: list[int], strides: list[int], offset: int) -> None:
    """Overlaps, diagonals, and what runs over the ends of rows."""
    assert not named(
        aten.as_strided.default, [torch.arange(12).reshape(2, 6)], sizes, strides, offset
    )


class Pooled(nn.Module):
    """Pools a transposition, whose gradient torch writes to a strided view."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.pool = nn.AdaptiveAvgPool1d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.layer(x).transpose(1, 2)).flatten(1)


@pytest.mark.parametrize("strategy", ["data", "fsdp"])
def test_presets_split_what_is_pooled(strategy: str) -> None:
    network = Pooled()
    compiled = autopar.compile(
        *(network, (torch.randn(8, 5, 8), torch.randn(8, 8))),
        mesh="2x2",
        strategy=strategy,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
    )
    report = compiled.report
    assert not [each for each in report if each.category in ("replicated", "undivided", "ignored")]
