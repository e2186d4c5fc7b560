"""Whatever waits, however it is split and whoever updates it, training is the same to the bit."""

from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.compiled import CompiledModel
from autopar.ir.memory.transfers import PLACES
from tests.partition.offload.models import OPTIMIZERS, state_of

MESHES = {"1": ("d0",), "d0=3": ("d0",), "a=3,b=2": ("a", "b"), "a=2,b=2,c=2": ("a", "b", "c")}
WIDTHS = (7, 10, 2, 5)
"""Sizes that divide by nothing; some processes have nothing of them."""

STEPS = 2


def model(tied: bool) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(n, m) for n, m in pairwise(WIDTHS)]
    if tied:
        layers.append(nn.Linear(WIDTHS[-1], WIDTHS[0]))
        layers.append(layers[0])
    return nn.Sequential(*(each for layer in layers for each in (layer, nn.Tanh())))


def batch(tied: bool) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    out = WIDTHS[1] if tied else WIDTHS[-1]
    return torch.randn(5, WIDTHS[0], generator=drawn), torch.randn(5, out, generator=drawn)


class Drawn:
    """A way to train, drawn by a seed."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.tied = draw.random() < 0.3
        self.optimizer = draw.choice([*OPTIMIZERS])
        mesh = draw.choice([*MESHES])
        made = model(self.tied)
        self.options: dict[str, Any] = {
            "mesh": mesh,
            "strategy": draw.choice(
                ["none", f"data:{MESHES[mesh][0]}", f"zero1:{MESHES[mesh][0]}"]
            ),
            "shard": {
                name: [draw.choice([-1, *MESHES[mesh]]), -1][: weight.ndim]
                for name, weight in made.named_parameters()
                if draw.random() < 0.4
            },
            "clip_grad_norm": draw.choice([None, 0.1]),
            "accumulate": draw.choice([1, 2]),
        }
        kinds = {"adam": ("exp_avg", "exp_avg_sq"), "momentum": ("momentum_buffer",)}
        kinds["one op after another"], kinds["rmsprop"] = kinds["adam"], ("square_avg",)
        names = [name for name, _ in made.named_parameters()]
        state = [f"{kind}/{name}" for kind in kinds[self.optimizer] for name in names]
        everything = [*names, *state]
        self.offload = draw.choice(
            [
                ["optimizer"],
                ["optimizer", "parameters"],
                draw.sample(everything, draw.randint(1, len(everything))),
            ]
        )

    def compiled(self, **options: Any) -> CompiledModel:
        made = model(self.tied)
        return autopar.compile(
            made,
            batch(self.tied),
            loss=nn.functional.mse_loss,
            optimizer=OPTIMIZERS[self.optimizer](made),
            **{**self.options, **options},
        )

    def trained(self, **options: Any) -> tuple[list[float], dict[str, Tensor]]:
        with tempfile.TemporaryDirectory() as folder:
            self.compiled(**options).save(f"{folder}/build")
            with autopar.load(f"{folder}/build", virtual=True) as trainer:
                losses = [trainer.step(batch(self.tied)).item() for _ in range(STEPS)]
                return losses, state_of(trainer)


SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))]


@pytest.mark.parametrize("seed", SEEDS)
def test_training_is_the_same(seed: int) -> None:
    drawn = Drawn(seed)
    expected, wanted = drawn.trained(offload=[])
    for update in PLACES:
        losses, state = drawn.trained(offload=drawn.offload, update=update)
        assert losses == expected, update
        assert state.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert torch.equal(state[name], tensor), (update, name)
