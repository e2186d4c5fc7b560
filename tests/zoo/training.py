"""Trains a model of the zoo on a mesh and beside it on one device, and compares the two."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

import autopar
from autopar import ProcessMesh
from autopar.ir.text.layouts import Entry
from autopar.runtime.job.processes import Processes
from tests.runtime.job.real import run_ranks
from tests.zoo.models import ZOO, Example

STEPS = 3
LEARNING_RATE = 3e-4
TOLERANCE = 1e-5
"""Of losses and parameters, relative to the largest element."""

ROUNDING = 2.0**-22
"""Of gradients, relative to the model's largest: what sums in another order differ by.

Adam divides by the size of a gradient, so it moves an element by the learning rate times the
relative error of its gradient: much of a step, where the gradient is zero but for rounding.
"""

FREE = 2.5
"""Of a learning rate: how far a step may take an element whose gradient is nothing but rounding."""

CPU = torch.device("cpu")

Pins = Mapping[str, Sequence[Entry]]


@dataclass(frozen=True)
class Trained:
    """What training leaves.

    Attributes:
        losses: Of each step.
        state: Parameters and buffers by name.
        slack: How far rounding may take elements of parameters.
    """

    losses: list[float]
    state: dict[str, Tensor]
    slack: dict[str, Tensor]


def train_eagerly(example: Example) -> Trained:
    """Trains a copy of a model as PyTorch does."""
    model = copy.deepcopy(example.model)
    optimizer = AdamW(model.parameters(), LEARNING_RATE)
    losses = []
    slack: dict[str, Tensor] = {}
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(example, model, number)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if parameter.grad is not None:
                error = ROUNDING * _largest_gradient(model) / parameter.grad.double().abs()
                step = LEARNING_RATE * error.nan_to_num(FREE).clamp(max=FREE)
                slack[name] = slack.get(name, torch.zeros_like(step)) + step
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, dict(model.state_dict()), slack)


def train_on_mesh(build: Path, example: Example, place: torch.device = CPU) -> Trained:
    """Trains a build on the virtual mesh, all ranks on one device."""
    with autopar.load(build, virtual=True, device=place) as trainer:
        losses = [trainer.step(example.batch(number)).item() for number in range(STEPS)]
        return Trained(losses, dict(trainer.state_dict()), {})


def train_in_processes(build: Path, model: str, count: int) -> list[Trained]:
    """Trains a build of a model of the zoo in processes, and returns what each of them saw."""
    found = run_ranks(count, train_rank, str(build), model)
    states = [safetensors.torch.load_file(_state_file(build, rank)) for rank in range(count)]
    return [Trained(losses, state, {}) for losses, state in zip(found, states, strict=True)]


def train_rank(processes: Processes, build: str, model: str) -> list[float]:
    """What each process does."""
    example = ZOO[model]()
    with autopar.load(build, backend="gloo", processes=processes) as trainer:
        losses = [trainer.step(example.batch(number)).item() for number in range(STEPS)]
        # A pipe doesn't hold this much. Tied parameters are one tensor, which the format refuses.
        state = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
        safetensors.torch.save_file(state, _state_file(Path(build), processes.rank))
        return losses


def _state_file(build: Path, rank: int) -> Path:
    return build.with_name(f"{build.name}-{rank}.safetensors")


def compile_step(
    example: Example,
    mesh: ProcessMesh,
    strategy: str | None,
    pins: Pins,
    build: Path,
    optimizer: Optimizer | None = None,
    device: str | None = None,
) -> None:
    """Writes the build of a model's training step, by default with `example_optimizer`."""
    autopar.compile(
        example.model,
        example.batch(0),
        mesh=mesh,
        loss=example.loss,
        optimizer=optimizer or example_optimizer(example.model),
        clip_grad_norm=1.0,
        strategy=strategy,
        shard=pins,
        device=device,
    ).save(build)


def example_optimizer(model: nn.Module) -> AdamW:
    """Returns the optimizer that a model is trained with."""
    return AdamW(model.parameters(), LEARNING_RATE)


def check(
    example: Example,
    mesh: ProcessMesh,
    strategy: str | None,
    pins: Pins | None = None,
    device: str | None = None,
) -> None:
    """Asserts that training on a mesh equals training on one device."""
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        compile_step(example, mesh, strategy, pins or {}, build, device=device)
        compare(train_on_mesh(build, example), train_eagerly(example))


def compare(found: Trained, expected: Trained) -> None:
    """Asserts that two trainings left the same."""
    torch.testing.assert_close(found.losses, expected.losses, rtol=TOLERANCE, atol=0)
    assert found.state.keys() == expected.state.keys()
    for name, whole in expected.state.items():
        bound = TOLERANCE * float(whole.abs().max())
        error = (found.state[name].double() - whole.double()).abs()
        excess = error - expected.slack.get(name, torch.zeros(())) - bound
        assert not (excess > 0).any(), f"{name}: {error.max()}, {excess.max()} beyond {bound}"


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
