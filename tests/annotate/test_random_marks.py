"""Marks at random: whatever a model is marked with, it computes what it does unmarked."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autopar.annotate import ProcessMesh, shard
from autopar.ir.text.layouts import Entry
from tests.judges import captured

MESHES = {
    "dp=2,tp=2": ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"]),
    "dp=2,tp=3": ProcessMesh([[0, 1, 2], [3, 4, 5]], ["dp", "tp"]),
    "dp=3": ProcessMesh([0, 1, 2], ["dp"]),
}
FAST, SLOW = 3, 60


class Marker:
    """Marks what it is given in a random way, or in several, or not at all."""

    def __init__(self, seed: int, mesh: ProcessMesh) -> None:
        self.random = random.Random(seed)
        self.mesh = mesh

    def __call__(self, x: Tensor, pending: bool = True) -> Tensor:
        for _ in range(self.random.choice((0, 1, 1, 2))):
            axes = self.random.sample(self.mesh.dim_names, self.mesh.ndim)
            axes = axes[: self.random.randint(0, len(axes))]
            partial = {}
            if axes and pending and self.random.random() < 0.3:
                partial[axes.pop()] = "sum"
            x = shard(x, self.mesh, self._mapping(x.ndim, axes), partial=partial)
        return x

    def _mapping(self, ndim: int, axes: list[str]) -> list[Entry]:
        held: list[list[str]] = [[] for _ in range(ndim)]
        for axis in axes:
            self.random.choice(held).append(axis)
        forms = {0: lambda _: self.random.choice((-1, None)), 1: lambda names: names[0]}
        return [forms.get(len(names), tuple)(names) for names in held]


def build(seed: int, mesh: ProcessMesh) -> captured.Captured:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.5

    def step(weights: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        # The step is traced more than once, and must be marked alike.
        mark = Marker(seed, mesh)
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        held = {name: mark(leaf, pending=False) for name, leaf in leaves.items()}
        x = mark(inputs["x"])
        q, k, v = (mark(part) for part in mark(x @ held["qkv"]).chunk(3, dim=-1))
        scores = mark(mark(q @ k.transpose(-1, -2)).softmax(-1))
        x = mark(x + scores @ v)
        h = mark(F.gelu(mark(F.layer_norm(x, (6,)) @ held["up"])))
        out = mark(mark(h @ held["down"]) + x)
        loss = (out * out).mean()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        named = {f"{name}.grad": g for name, g in zip(leaves, gradients, strict=True)}
        return {"loss": loss, **named}

    weights = {"qkv": normal(6, 18), "up": normal(6, 8), "down": normal(8, 6)}
    return captured.capture(step, weights, {"x": normal(4, 5, 6)})


def check(seed: int) -> None:
    options = list(MESHES)[seed % len(MESHES)]
    case = build(seed, MESHES[options])
    done = captured.compiled(case, options)
    captured.check(case, done)
    for name, value in case.program.main.values.items():
        if value.dist is not None:
            found = done.serial.main.values[name]
            assert found.dist is not None
            assert found.dist.dims_mapping == value.dist.dims_mapping
            assert found.dist.partial == value.dist.partial


@pytest.mark.parametrize("seed", range(FAST))
def test_marks_change_nothing(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FAST, SLOW))
def test_more_marks_change_nothing(seed: int) -> None:
    check(seed)
