"""Trains a model by PyTorch and on meshes, to compare what it becomes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import autopar
from autopar.annotate import Pin
from autopar.compiled import CompiledModel
from autopar.frontend.torch import Captured, Recipe, capture
from autopar.ir.mesh import ProcessMesh
from autopar.pipeline import CompileOptions, compile_program
from tests.sweep.case import Case, cloned, is_drawn

STEPS = 3

LEARNING_RATE = 1e-3

ROUNDING = 2.0**-48
"""By which weights are moved, of what they are: what sums in another order make of them."""


class Optimize(Protocol):
    """Makes an optimizer of parameters."""

    def __call__(self, parameters: Iterable[nn.Parameter], /) -> Optimizer: ...


def adamw(parameters: Iterable[nn.Parameter], /) -> Optimizer:
    """What training is judged with."""
    return AdamW(parameters, LEARNING_RATE)


def steady(parameters: Iterable[nn.Parameter], /) -> Optimizer:
    """AdamW that makes no full steps of gradients which are as small as rounding."""
    return AdamW(parameters, LEARNING_RATE, eps=1e-3)


def gradients(parameters: Iterable[nn.Parameter], /) -> Optimizer:
    """Subtracts gradients as they are, so that parameters tell them."""
    return SGD(parameters, 1.0)


@dataclass(frozen=True)
class Trained:
    """Losses of steps, and the state that they leave."""

    losses: list[float]
    state: dict[str, Tensor]


class Subject:
    """A case that is trained, however often it is compiled: what PyTorch makes of it is kept.

    Args:
        case: The model and its batches.
        dropout: Whether the model drops what it does by default.
        optimize: Makes the optimizer.
        steps: How many are taken.
    """

    def __init__(
        self, case: Case, dropout: bool = False, optimize: Optimize = adamw, steps: int = STEPS
    ) -> None:
        self.case = case
        self.dropout = dropout
        self.optimize = optimize
        self.steps = steps

    @cached_property
    def model(self) -> nn.Module:
        """The model with its loss, in training mode."""
        return self.case.training(self.case.model(self.dropout).train())

    @cached_property
    def batches(self) -> list[dict[str, Tensor]]:
        """A batch for each step."""
        model = self.model.model
        return [self.case.batch(model, number) for number in range(self.steps)]

    @cached_property
    def draws(self) -> bool:
        """Whether the loss depends on random numbers."""
        return self.case.draws and is_drawn(copy.deepcopy(self.model), self.batches[0])

    @cached_property
    def captured(self) -> Captured:
        """The training step."""
        recipe = Recipe(optimizer=self.optimize(self.model.parameters()))
        return capture(self.model, self.batches[0], recipe)

    @cached_property
    def trained(self) -> Trained:
        """What PyTorch makes of the model."""
        return train(self.model, self.batches, self.optimize)

    def perturbed(self) -> Trained:
        """Returns what PyTorch makes of the model if its weights are off by rounding."""
        return train(_perturbed(self.model), self.batches, self.optimize)

    @cached_property
    def alone(self) -> Trained:
        """What one process makes of the model, which draws as many do."""
        one = ProcessMesh.of_shape((1,), ("a",))
        return train_on_mesh(self.compiled(one, "data:a"), self.batches)

    def compiled(
        self, mesh: ProcessMesh, strategy: str, pins: Sequence[Pin] = (), **limits: Any
    ) -> CompiledModel:
        """Compiles the training step, as `autopar.compile` does."""
        shard = {pin.pattern: pin.dims_mapping for pin in pins}
        options = CompileOptions.from_arguments(mesh=mesh, strategy=strategy, shard=shard, **limits)
        program = self.captured.program
        return CompiledModel.of(compile_program(program, options), program, self.captured.weights)


def train(model: nn.Module, batches: Sequence[Mapping[str, Tensor]], optimize: Optimize) -> Trained:
    """Trains a copy of a model as PyTorch does."""
    model = copy.deepcopy(model)
    optimizer = optimize(model.parameters())
    losses = []
    for batch in map(cloned, batches):
        optimizer.zero_grad()
        torch.manual_seed(0)
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, dict(model.state_dict()))


def train_on_mesh(compiled: CompiledModel, batches: Sequence[dict[str, Tensor]]) -> Trained:
    """Trains what was compiled."""
    with TemporaryDirectory() as folder:
        compiled.save(folder)
        return _train_build(Path(folder), batches)


def _train_build(build: Path, batches: Sequence[dict[str, Tensor]]) -> Trained:
    with autopar.load(build, virtual=True) as trainer:
        losses = [trainer.step(cloned(batch)).item() for batch in batches]
        return Trained(losses, dict(trainer.state_dict()))


def _perturbed(model: nn.Module) -> nn.Module:
    """Returns a copy of a model whose weights are off by rounding, some up and some down."""
    found = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in found.parameters():
            signs = torch.randint(0, 2, each.shape, generator=draw).to(each.dtype) * 2 - 1
            each.mul_(1 + ROUNDING * signs)
    return found


def errors(found: Trained, expected: Trained) -> Iterator[tuple[str, float]]:
    """Returns how far losses and states are off, of the largest element, or of 1."""
    for step, (one, other) in enumerate(zip(found.losses, expected.losses, strict=True)):
        yield f"loss {step}", abs(one - other) / max(1.0, abs(other))
    if found.state.keys() != expected.state.keys():
        yield f"names {sorted(found.state.keys() ^ expected.state.keys())[:3]}", float("inf")
    for name in found.state.keys() & expected.state.keys():
        yield name, error_of(found.state[name], expected.state[name])


def error_of(one: Tensor, other: Tensor) -> float:
    """Returns how far a tensor is off, of the largest element of the other, or of 1."""
    if one.shape != other.shape:
        return float("inf")
    if not other.numel():
        return 0.0
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    found = (one - other).abs() / other.nan_to_num(0, 0, 0).abs().max().clamp(min=1.0)
    return float(found.masked_fill(same, 0).nan_to_num(float("inf")).max())
