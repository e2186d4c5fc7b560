"""Trains a model by PyTorch and on meshes, to compare what it becomes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import autopar
from autopar.ir.mesh import ProcessMesh
from autopar.modules import CompiledModule

LEARNING_RATE = 1e-3

ROUNDING = 2.0**-48
"""By which weights are moved, of what they are: what sums in another order make of them."""


class Optimize(Protocol):
    """Makes an optimizer of parameters."""

    def __call__(self, parameters: Iterable[nn.Parameter], /) -> Optimizer: ...


def adamw(parameters: Iterable[nn.Parameter], /) -> Optimizer:
    """What training is judged with."""
    return AdamW(parameters, LEARNING_RATE)


def gradients(parameters: Iterable[nn.Parameter], /) -> Optimizer:
    """Subtracts gradients as they are, so that parameters tell them."""
    return SGD(parameters, 1.0)


@dataclass(frozen=True)
class Trained:
    """Losses of steps, and the state that they leave."""

    losses: list[float]
    state: dict[str, Tensor]


def train(model: nn.Module, batches: Sequence[Mapping[str, Tensor]], optimize: Optimize) -> Trained:
    """Trains a copy of a model as PyTorch does."""
    model = copy.deepcopy(model)
    optimizer = optimize(model.parameters())
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        torch.manual_seed(0)
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, dict(model.state_dict()))


def train_on_mesh(build: Path, batches: Sequence[dict[str, Tensor]]) -> Trained:
    """Trains what was compiled."""
    with autopar.load(build, virtual=True) as trainer:
        losses = [trainer.step(batch).item() for batch in batches]
        return Trained(losses, dict(trainer.state_dict()))


def train_alone(
    model: nn.Module, batches: Sequence[dict[str, Tensor]], optimize: Optimize, folder: Path
) -> Trained:
    """Trains what is compiled for one process, which draws as it does for many.

    Args:
        model: With its loss.
        batches: One for each step.
        optimize: Makes the optimizer.
        folder: Where it is built; it doesn't exist yet.
    """
    one = ProcessMesh.of_shape((1,), ("a",))
    compile_step(model, batches[0], one, optimize, "data:a", {}).save(folder)
    return train_on_mesh(folder, batches)


def compile_step(
    model: nn.Module,
    batch: dict[str, Tensor],
    mesh: ProcessMesh,
    optimize: Optimize,
    strategy: str,
    pins: Mapping[str, Any],
    **options: Any,
) -> CompiledModule:
    """Compiles a training step."""
    return autopar.compile(
        model,
        batch,
        mesh=mesh,
        optimizer=optimize(model.parameters()),
        strategy=strategy,
        shard=pins,
        **options,
    )


def moved(model: nn.Module) -> nn.Module:
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
