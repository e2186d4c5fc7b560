"""Trains a model of the zoo on a mesh and beside it on one device, and compares the two."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

import autopar
from autopar import ProcessMesh
from autopar.annotate.mapping_text import Entry
from autopar.runtime.processes import Processes
from tests.runtime.real import run_ranks
from tests.zoo.models import ZOO, Example

STEPS = 3
LEARNING_RATE = 3e-4
TOLERANCE = 1e-5
"""Of losses and parameters, relative to the largest element."""

NOISE = 1e-5
"""An element whose gradient is this small beside the largest of its parameter has none but rounding
errors, which Adam blows up to steps of the learning rate."""

Pins = Mapping[str, Sequence[Entry]]


@dataclass(frozen=True)
class Trained:
    """What training leaves.

    Attributes:
        losses: Of each step.
        state: Parameters and buffers by name.
        noisy: Where elements of parameters had no gradient but rounding errors.
    """

    losses: list[float]
    state: dict[str, Tensor]
    noisy: dict[str, Tensor]


def train_eagerly(example: Example) -> Trained:
    """Trains a copy of a model as PyTorch does."""
    model = copy.deepcopy(example.model)
    optimizer = AdamW(model.parameters(), LEARNING_RATE)
    losses = []
    noisy: dict[str, Tensor] = {}
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(example, model, number)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if parameter.grad is not None:
                size = parameter.grad.abs()
                small = size <= NOISE * _largest_gradient(model)
                noisy[name] = noisy.get(name, torch.zeros_like(small)) | small
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, dict(model.state_dict()), noisy)


def train_on_mesh(build: Path, example: Example) -> Trained:
    """Trains a build on the virtual mesh."""
    with autopar.load(build, virtual=True) as trainer:
        losses = [trainer.step(example.batch(number)).item() for number in range(STEPS)]
        return Trained(losses, dict(trainer.state_dict()), {})


def train_in_processes(build: Path, model: str, count: int) -> list[Trained]:
    """Trains a build of a model of the zoo in processes, and returns what each of them saw."""
    found = run_ranks(count, train_rank, str(build), model, seconds=240)
    return [
        Trained(losses, {name: torch.as_tensor(array) for name, array in state.items()}, {})
        for losses, state in found
    ]


def train_rank(processes: Processes, build: str, model: str) -> tuple[list[float], dict[str, Any]]:
    """What each process does."""
    example = ZOO[model]()
    with autopar.load(build, backend="gloo", processes=processes) as trainer:
        losses = [trainer.step(example.batch(number)).item() for number in range(STEPS)]
        # A tensor in a pipe needs its sender alive.
        return losses, {name: tensor.numpy() for name, tensor in trainer.state_dict().items()}


def compile_step(
    example: Example, mesh: ProcessMesh, strategy: str | None, pins: Pins, build: Path
) -> None:
    """Writes the build of a model's training step."""
    autopar.compile(
        example.model,
        example.batch(0),
        mesh=mesh,
        loss=example.loss,
        optimizer=example_optimizer(example.model),
        clip_grad_norm=1.0,
        strategy=strategy,
        shard=pins,
    ).save(build)


def example_optimizer(model: nn.Module) -> AdamW:
    """Returns the optimizer that a model is trained with."""
    return AdamW(model.parameters(), LEARNING_RATE)


def check(
    example: Example, mesh: ProcessMesh, strategy: str | None = "", pins: Pins | None = None
) -> None:
    """Asserts that training on a mesh equals training on one device."""
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        compile_step(example, mesh, strategy, pins or {}, build)
        compare(train_on_mesh(build, example), train_eagerly(example))


def compare(found: Trained, expected: Trained) -> None:
    """Asserts that two trainings left the same."""
    torch.testing.assert_close(found.losses, expected.losses, rtol=TOLERANCE, atol=0)
    assert found.state.keys() == expected.state.keys()
    for name, whole in expected.state.items():
        bound = TOLERANCE * float(whole.abs().max())
        error = (found.state[name].double() - whole.double()).abs()
        noisy = expected.noisy.get(name, torch.zeros_like(whole, dtype=torch.bool))
        assert not (error[~noisy] > bound).any(), f"{name}: {error[~noisy].max()} > {bound}"
        # Each step moves an element by the learning rate at most.
        assert not (error[noisy] > 2.5 * STEPS * LEARNING_RATE).any(), name


def loss_of(example: Example, model: nn.Module, number: int) -> Tensor:
    """Returns the loss of a step's batch."""
    batch = example.batch(number)
    if example.loss is None:
        loss: Tensor = model(**batch).loss
        return loss
    inputs, target = batch
    return example.loss(model(*inputs), target)


def _largest_gradient(model: nn.Module) -> Tensor:
    return torch.stack([p.grad.abs().max() for p in model.parameters() if p.grad is not None]).max()
