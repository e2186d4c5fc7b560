"""Trains a model of the zoo on a mesh and beside it on one device, and compares the two."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW

import autopar
from autopar import ProcessMesh
from autopar.annotate.mapping_text import Entry
from tests.zoo.models import Example

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
        loss = _loss(example, model, number)
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


def train_on_mesh(example: Example, mesh: ProcessMesh, strategy: str | None, pins: Pins) -> Trained:
    """Compiles a model's training step for a mesh, and trains on it in one process."""
    compiled = autopar.compile(
        example.model,
        example.batch(0),
        mesh=mesh,
        loss=example.loss,
        optimizer=example_optimizer(example),
        clip_grad_norm=1.0,
        strategy=strategy,
        shard=pins,
    )
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        compiled.save(build)
        with autopar.load(build, virtual=True) as trainer:
            losses = [trainer.step(example.batch(number)).item() for number in range(STEPS)]
            return Trained(losses, dict(trainer.state_dict()), {})


def example_optimizer(example: Example) -> AdamW:
    """Returns the optimizer that a model is trained with."""
    return AdamW(example.model.parameters(), LEARNING_RATE)


def check(
    example: Example, mesh: ProcessMesh, strategy: str | None = "", pins: Pins | None = None
) -> None:
    """Asserts that training on a mesh equals training on one device."""
    expected = train_eagerly(example)
    found = train_on_mesh(example, mesh, strategy, pins or {})
    torch.testing.assert_close(found.losses, expected.losses, rtol=TOLERANCE, atol=0)
    assert found.state.keys() == expected.state.keys()
    for name, whole in expected.state.items():
        bound = TOLERANCE * float(whole.abs().max())
        error = (found.state[name].double() - whole.double()).abs()
        noisy = expected.noisy.get(name, torch.zeros_like(whole, dtype=torch.bool))
        assert not (error[~noisy] > bound).any(), f"{name}: {error[~noisy].max()} > {bound}"
        # Each step moves an element by the learning rate at most.
        assert not (error[noisy] > 2.5 * STEPS * LEARNING_RATE).any(), name


def _loss(example: Example, model: nn.Module, number: int) -> Tensor:
    batch = example.batch(number)
    if example.loss is None:
        loss: Tensor = model(**batch).loss
        return loss
    inputs, target = batch
    return example.loss(model(*inputs), target)


def _largest_gradient(model: nn.Module) -> Tensor:
    return torch.stack([p.grad.abs().max() for p in model.parameters() if p.grad is not None]).max()
