"""Rows that data select beside others, as edges of a graph beside loops: right for every batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.frontend.torch import capture
from autopar.ir.assumptions import assumption_ports

NODES, EDGES, WIDTH = 6, 14, 4

Pass = Callable[["Layer", Tensor, Tensor, Tensor], Tensor]
"""(module, nodes, edges, weights of the edges) -> what nodes hear from one another."""


class Layer(nn.Module):
    """What nodes hear along edges, of which those from a node to itself are replaced by loops."""

    def __init__(self, hear: Pass) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1)
        self.hear = hear
        self.double()

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
        return self.hear(self, self.enter(x), edges, weights)


def looped(edges: Tensor) -> Tensor:
    edges = edges[:, edges[0] != edges[1]]
    return torch.cat([edges, torch.arange(NODES).repeat(2, 1)], dim=1)


def expanded(index: Tensor, source: Tensor) -> Tensor:
    return index.view(-1, 1).expand_as(source)


def normed(self: Layer, h: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
    """As convolutions of graphs have it, with each loop of the weight that its edge had."""
    mask = edges[0] != edges[1]
    own = torch.full((NODES,), 0.5, dtype=weights.dtype)
    loops = ~mask
    own[edges[0][loops]] = weights[loops]
    weights = torch.cat([weights[mask], own])
    rows, columns = torch.concat([edges[:, mask], torch.arange(NODES).repeat(2, 1)], dim=1)
    degree = weights.new_zeros(NODES).scatter_add_(0, columns, weights)
    scale = degree.pow(-0.5)
    norm = scale[rows] * weights * scale[columns]
    sent = norm.view(-1, 1) * h.index_select(0, rows)
    return h.new_zeros(h.shape).scatter_add(0, expanded(columns, sent), sent)


def attended(self: Layer, h: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
    """As attention over the neighbours of each node has it."""
    index = looped(edges)
    score = self.score(torch.tanh(h[index[0]] + h[index[1]])).squeeze(-1)
    if index[0].numel() == 0:
        return h
    most = score.new_zeros(NODES).scatter_reduce_(
        0, index[1], score.detach(), reduce="amax", include_self=False
    )
    each = (score - most.index_select(0, index[1])).exp()
    total = each.new_zeros(NODES).scatter_add_(0, index[1], each) + 1e-16
    sent = (each / total[index[1]]).unsqueeze(-1) * h[index[0]]
    return torch.zeros_like(h).index_add_(0, index[1], sent)


def averaged(self: Layer, h: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
    """With a weight for each edge that is made where its function asks for their number."""
    index = looped(edges)
    weight = torch.ones((index.size(1),), dtype=h.dtype)
    return reduced(weight, index[1], h[index[0]])


def reduced(weight: Tensor, index: Tensor, sent: Tensor) -> Tensor:
    return sent.new_zeros(NODES, WIDTH).scatter_reduce(
        0, expanded(index, sent), sent * weight.view(-1, 1), "mean", include_self=False
    )


def largest(self: Layer, h: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
    """With nodes that nothing reaches: those are zero, or what they were."""
    mask = edges[0] != edges[1]
    index = edges[:, mask]
    sent = weights[mask].view(-1, 1) * h[index[0]]
    most = torch.zeros_like(h).scatter_reduce(0, expanded(index[1], sent), sent, "amax")
    return most + h.scatter_reduce(0, expanded(index[1], sent), sent, "prod")


FORMS = [normed, attended, averaged, largest]


def graph(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a graph; of some, all edges are loops, or none is."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(NODES, WIDTH, generator=draw).double()
    edges = torch.randint(0, NODES, (2, EDGES), generator=draw)
    if seed % 4 == 2:
        # No two of them are for one node: which one is written last is left open.
        edges = torch.stack([torch.arange(EDGES) % NODES] * 2)
        return x, edges, torch.arange(EDGES).double() % NODES / 8 + 0.5
    step = torch.randint(1, NODES, (EDGES,), generator=draw)
    edges[1] = (edges[0] + step) % NODES
    edges[:, : seed % 4] = torch.arange(seed % 4)
    return x, edges, torch.rand(EDGES, generator=draw).double() + 0.5


def square(found: Tensor, target: Tensor) -> Tensor:
    return (found - target).square().mean()


CASES = [(form, "2x2", "fsdp:0,tensor:1") for form in FORMS]
CASES += [(form, "3x2", "auto") for form in (attended, largest)]


@pytest.mark.parametrize(("form", "mesh", "strategy"), CASES)
def test_training(tmp_path: Path, form: Pass, mesh: str, strategy: str) -> None:
    model, target = Layer(form), torch.randn(NODES, WIDTH).double()
    program = capture(model, graph(1)).program
    assert not list(assumption_ports(program, program.main))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = copy.deepcopy(model)
    batch = (graph(1), target)
    autopar.compile(
        *(model, batch), mesh=mesh, strategy=strategy, loss=square, optimizer=optimizer
    ).save(tmp_path / "build")
    reference = torch.optim.SGD(expected.parameters(), lr=0.1)
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        for seed in range(5):
            found = trainer.step((graph(seed), target))
            loss = square(expected(*graph(seed)), target)
            reference.zero_grad()
            loss.backward()
            reference.step()
            torch.testing.assert_close(found, loss.detach(), rtol=1e-9, atol=1e-9)
        for name, tensor in trainer.state_dict().items():
            kept = expected.state_dict()[name]
            torch.testing.assert_close(tensor, kept, rtol=1e-9, atol=1e-9)
