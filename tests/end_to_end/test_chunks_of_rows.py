"""Rows of images are computed in chunks, with the halo that convolutions and poolings read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autopar.annotate import ChunkPin, parse_mesh
from autopar.base.errors import AnnotationError
from autopar.cost import Cluster
from autopar.frontend.torch import Captured, Recipe, capture
from autopar.ir.program import Program
from autopar.pipeline import CompileOptions, compile_program
from autopar.planning.chunk import chunked
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.verification.verification import verify_mesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.given.random_pins import random_pins
from tests.judges.steps import Steps, stored_values

MESHES = ("1", "2", "3", "2x2")
WIDTH = 6


class Cut(nn.Module):
    """Rows from one on, up to one before the last few."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, self.first : x.shape[2] - self.last]


class Beside(nn.Module):
    """What layers make of something, beside it or added to it."""

    def __init__(self, inner: nn.Module, *, added: bool) -> None:
        super().__init__()
        self.inner, self.added = inner, added

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x) if self.added else torch.cat([x, self.inner(x)], 1)


class Between(nn.Module):
    """A U: half as many rows between, which are made as many again."""

    def __init__(self, down: nn.Module, inner: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.down, self.inner, self.up = down, inner, up

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.up(self.inner(self.down(x)))
        both = zip(x.shape[2:], found.shape[2:], strict=True)
        rows, columns = (min(one, other) for one, other in both)
        return torch.cat([x[:, :, :rows, :columns], found[:, :, :rows, :columns]], 1)


def normalized(channels: int, *, frozen: bool) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.running_mean, -1, 1)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm.eval() if frozen else norm


Layer = Callable[[random.Random, int], tuple[nn.Module, int]]


def convolution(chance: random.Random, channels: int) -> tuple[nn.Module, int]:
    kernel, dilation = chance.choice([(1, 1), (3, 1), (3, 1), (3, 2), (5, 1), (2, 1)])
    more = {
        "padding": chance.choice([(kernel - 1) * dilation // 2, kernel // 2, 0, "same"]),
        "stride": chance.choice([1, 1, 2]),
        "dilation": dilation,
        "bias": chance.random() < 0.7,
        "padding_mode": chance.choice(["zeros"] * 4 + ["replicate", "reflect"]),
    }
    if more["padding"] == "same":
        more["stride"] = 1
    wide = chance.choice([channels, 2, 4])
    groups = chance.choice([1, 1, 2]) if channels % 2 == wide % 2 == 0 else 1
    return nn.Conv2d(channels, wide, kernel, groups=groups, **more), wide


def transposed(chance: random.Random, channels: int) -> tuple[nn.Module, int]:
    kernel, stride, padding, more = chance.choice([(2, 2, 0, 0), (3, 2, 1, 1), (3, 1, 1, 0)])
    return nn.ConvTranspose2d(channels, 2, kernel, stride, padding, more), 2


def pooling(chance: random.Random, channels: int) -> tuple[nn.Module, int]:
    made = [
        lambda: nn.MaxPool2d(2),
        lambda: nn.MaxPool2d(3, 2, 1),
        lambda: nn.MaxPool2d(3, 1, 1),
        lambda: nn.MaxPool2d(2, ceil_mode=True),
        lambda: nn.MaxPool2d(2, 1, dilation=2),
        lambda: nn.AvgPool2d(2),
        lambda: nn.AvgPool2d(3, 1, 1),
        lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    ]
    return chance.choice(made)(), channels


def pointwise(chance: random.Random, channels: int) -> tuple[nn.Module, int]:
    made = [
        nn.ReLU,
        nn.GELU,
        nn.Sigmoid,
        lambda: nn.Dropout(0.5),
        lambda: nn.GroupNorm(2 if channels % 2 == 0 else 1, channels),
        lambda: normalized(channels, frozen=True),
        lambda: normalized(channels, frozen=False),
    ]
    return chance.choice(made)(), channels


def moving(chance: random.Random, channels: int) -> tuple[nn.Module, int]:
    made = [
        lambda: nn.ZeroPad2d((0, 0, 1, 2)),
        lambda: nn.Upsample(scale_factor=2),
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        lambda: Cut(chance.choice([0, 1, 3]), chance.choice([0, 1, 3])),
    ]
    return chance.choice(made)(), channels


def same_rows(chance: random.Random, channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())


def around(chance: random.Random, channels: int) -> tuple[nn.Module, int]:
    inner = same_rows(chance, channels)
    if chance.random() < 0.5:
        added = chance.random() < 0.5
        return Beside(inner, added=added), channels * (1 if added else 2)
    down = chance.choice([nn.MaxPool2d(2), nn.Conv2d(channels, channels, 3, 2, 1)])
    up = chance.choice([nn.Upsample(scale_factor=2), nn.ConvTranspose2d(channels, channels, 2, 2)])
    return Between(down, inner, up), 2 * channels


LAYERS: Sequence[Layer] = (
    *(convolution,) * 4,
    transposed,
    pooling,
    *(pointwise,) * 4,
    moving,
    around,
)


class Mixed(nn.Module):
    """Layers, as chance has them, and perhaps a loss."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        layers, channels = list[nn.Module](), 2
        for _ in range(chance.randint(2, 6)):
            layer, channels = chance.choice(LAYERS)(chance, channels)
            layers.append(layer)
        self.layers = nn.Sequential(*layers)
        self.scale = nn.Parameter(torch.ones(2, 1, 1))
        self.loss = chance.choice([F.mse_loss, F.l1_loss])

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        found = self.layers(x * self.scale)
        return found if target is None else self.loss(found, target)


def drawn(seed: int) -> tuple[random.Random, Mixed, Tensor]:
    """Returns a model for which an image is large enough, with that."""
    for attempt in range(100):
        chance = random.Random(1000 * seed + attempt)
        torch.manual_seed(seed)
        model = Mixed(chance).double()
        x = torch.randn(1, 2, chance.choice([16, 21, 24, 31]), WIDTH).double()
        try:
            model(x)
        except RuntimeError:
            continue
        return chance, model, x
    raise AssertionError(f"no model of seed {seed} takes an image")


def cut_at_random(program: Program, chance: random.Random) -> Program:
    """Returns a program with rows of some values in chunks, as far as that can be."""
    pins = list[ChunkPin]()
    made = [name for op in program.main.ops if op.phase == "forward" for name in op.results]
    for name in chance.sample(made, min(4, len(made))):
        try:
            pin = ChunkPin.from_entry(name, (chance.choice([2, 2, 2, 3]), chance.choice([2, 3, 4])))
            chunked(program, [*pins, pin])
            pins.append(pin)
        except AnnotationError:
            continue
    return chunked(program, pins)


def check_on_mesh(
    step: Captured, cut: Program, inputs: dict[str, Tensor], mesh: str, seed: int, folder: Path
) -> None:
    shape = parse_mesh(mesh)
    options = CompileOptions(
        shape, Cluster.load("cpu"), "auto", random_pins(cut, shape, "chunk", seed)
    )
    done = compile_program(cut, options)
    weights = stored_values(step)
    write_weights(folder / "weights", weights)
    with WeightFile(folder / "weights") as file:
        ranks = VirtualMesh(done.deployment, file)
        assert verify_mesh(done.serial, weights, ranks, inputs, forced=True).ok


def check_training(seed: int, folder: Path) -> bool:
    """Checks a random step with random chunks and pins; returns whether there are any."""
    chance, model, x = drawn(seed)
    batch = x, torch.randn_like(model(x))
    recipe = Recipe(
        training_step=lambda module, given: module(*given),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
    )
    step = capture(model, batch, recipe)
    cut = cut_at_random(step.program, chance)
    inputs = dict(zip(step.structure.labels, batch, strict=True))
    whole, parts = Steps(step), Steps(step)
    parts.program = cut
    torch.testing.assert_close(parts.take(batch), whole.take(batch), rtol=1e-9, atol=1e-12)
    for name, tensor in whole.stored.items():
        torch.testing.assert_close(parts.stored[name], tensor, rtol=1e-9, atol=1e-11)
    check_on_mesh(step, cut, inputs, chance.choice(MESHES), seed, folder)
    return cut is not step.program


def check_inference(seed: int, folder: Path) -> bool:
    """Checks a random model with random chunks and pins; returns whether there are any."""
    chance, model, x = drawn(seed)
    model.eval()
    step = capture(model, (x,))
    cut = cut_at_random(step.program, chance)
    inputs = dict(zip(step.structure.labels, (x,), strict=True))
    (found,) = run_serial(cut, stored_values(step), inputs).values()
    torch.testing.assert_close(found, model(x), rtol=1e-9, atol=1e-12)
    check_on_mesh(step, cut, inputs, chance.choice(MESHES), seed, folder)
    return cut is not step.program


@pytest.mark.parametrize("seed", range(2))
def test_a_random_model(seed: int, tmp_path: Path) -> None:
    check_inference(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 200))
def test_many_random_models(seed: int, tmp_path: Path) -> None:
    check_inference(seed, tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_a_random_step(seed: int, tmp_path: Path) -> None:
    check_training(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 200))
def test_many_random_steps(seed: int, tmp_path: Path) -> None:
    check_training(seed, tmp_path)
