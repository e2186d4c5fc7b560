"""Models with marks on random slices: whatever runs where, results are those of one device."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autopar import ProcessMesh
from autopar.annotate import shard
from autopar.ir.text.layouts import Entry
from autopar.runtime.training.opening import open_trainer
from tests.judges import captured
from tests.slices.models import CUBE, PAIR, SQUARE, TALL, THREE, WIDTH, Batch, compiled, trained

MESHES = [PAIR, SQUARE, CUBE, THREE, TALL]
STRATEGIES = (None, "", "ddp:{last}", "tensor:{last}", "fsdp:{last}", "zero1:{first}")
FAST, SLOW = 4, 80


def random_mark(x: Tensor, mesh: ProcessMesh, draw: random.Random, pending: bool = False) -> Tensor:
    """Returns a tensor on a random slice, in a random layout; the slice may be the whole mesh."""
    sizes = mesh.axis_sizes().items()
    part = mesh.at((axis, draw.randrange(size)) for axis, size in sizes if draw.random() < 0.6)
    axes = draw.sample(part.dim_names, part.ndim)
    axes = axes[: draw.randint(0, len(axes))]
    partial = {axes.pop(): "sum"} if axes and pending and draw.random() < 0.3 else None
    mapping: list[Entry] = [None] * x.ndim
    for at, axis in zip(draw.sample(range(x.ndim), x.ndim), axes, strict=False):
        mapping[at] = axis
    return shard(x, part, mapping, partial=partial)


class Net(nn.Module):
    """A random graph of layers with random marks; some layers are used twice."""

    def __init__(self, seed: int, mesh: ProcessMesh) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.seed = seed
        self.mesh = mesh

    def forward(self, x: Tensor) -> Tensor:
        draw = random.Random(self.seed)
        known = [x]
        for _ in range(6):
            h = draw.choice(known[-3:])
            if draw.random() < 0.6:
                h = random_mark(h, self.mesh, draw)
            kind = draw.choice(("layer", "layer", "add", "norm", "mix"))
            if kind == "layer":
                layer = self.layers[draw.randrange(4)]
                weight = layer.weight
                if draw.random() < 0.2:
                    weight = random_mark(weight, self.mesh, draw)
                known.append(torch.tanh(F.linear(h, weight, layer.bias)))
            elif kind == "add":
                known.append(h + draw.choice(known))
            elif kind == "norm":
                known.append(self.norm(h))
            else:
                known.append((h @ draw.choice(known).transpose(-1, -2)).softmax(-1) @ h)
        return sum(known[1:], known[0])


def given(count: int) -> list[Batch]:
    drawn = torch.Generator().manual_seed(3)
    return [
        tuple(torch.randn((2, 6, WIDTH), generator=drawn) for _ in range(2)) for _ in range(count)
    ]  # type: ignore[misc]


def check_training(seed: int, folder: Path) -> None:
    draw = random.Random(seed)
    mesh = MESHES[seed % len(MESHES)]
    strategy = draw.choice(STRATEGIES)
    if strategy:
        strategy = strategy.format(last=mesh.dim_names[-1], first=mesh.dim_names[0])
    clip = draw.choice((None, 0.1))
    accumulate = draw.choice((1, 1, 2))
    model, steps = Net(seed, mesh), given(3)
    done = compiled(
        model, mesh, steps[0], strategy=strategy, clip_grad_norm=clip, accumulate=accumulate
    )
    done.save(folder)
    losses = trained(model, steps, clip)
    with open_trainer(folder, virtual=True) as trainer:
        assert [trainer.step(batch).item() for batch in steps] == pytest.approx(losses, rel=1e-5)
        found = trainer.state_dict()
    for name, expected in model.state_dict().items():
        # A gradient may be zero but for rounding.
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(FAST))
def test_training_is_that_of_one_device(seed: int, tmp_path: Path) -> None:
    check_training(seed, tmp_path / "b")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FAST, SLOW))
def test_more_training_is_that_of_one_device(seed: int, tmp_path: Path) -> None:
    check_training(seed, tmp_path / "b")


def check_program(seed: int) -> None:
    """Checks a program without phases, in which sums may be left pending on slices."""
    mesh = MESHES[seed % len(MESHES)]
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn((6, 6), generator=generator) * 0.5 for name in ("q", "k", "v", "up")
    }

    def step(held: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        # The step is traced more than once, and must be marked alike.
        draw = random.Random(seed)

        def mark(x: Tensor, pending: bool = True) -> Tensor:
            return random_mark(x, mesh, draw, pending) if draw.random() < 0.5 else x

        leaves = {name: tensor.detach().requires_grad_() for name, tensor in held.items()}
        w = {name: mark(leaf, pending=False) for name, leaf in leaves.items()}
        x = mark(inputs["x"])
        q, k, v = (mark(x @ w[name]) for name in "qkv")
        x = mark(x + mark(mark(q @ k.transpose(-1, -2)).softmax(-1) @ v))
        out = mark(F.gelu(mark(F.layer_norm(x, (6,)) @ w["up"]))) + x
        loss = (out * out).mean()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        named = {f"{name}.grad": g for name, g in zip(leaves, gradients, strict=True)}
        return {"loss": loss, "out": out, **named}

    inputs = {"x": torch.randn((4, 5, 6), generator=generator)}
    case = captured.capture(step, weights, inputs)
    options = ",".join(f"{axis}={size}" for axis, size in mesh.axis_sizes().items())
    captured.check(case, captured.compiled(case, options))


@pytest.mark.parametrize("seed", range(FAST))
def test_programs_compute_what_they_do_on_one_device(seed: int) -> None:
    check_program(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FAST, SLOW))
def test_more_programs_compute_what_they_do_on_one_device(seed: int) -> None:
    check_program(seed)
