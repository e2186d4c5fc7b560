"""Models that are trained with parts of their state in the host's memory, and without."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import autopar
from autopar.compiled import CompiledModel
from autopar.ir.memory.transfers import DEVICE
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.verdicts import NonFiniteLoss

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]

OPTIMIZERS: Mapping[str, Optimizer] = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), 1e-2),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9),
    "one op after another": lambda model: torch.optim.Adam(
        model.parameters(), 1e-2, foreach=True, fused=False
    ),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), 1e-2),
}

STATE, ALL = ("optimizer",), ("optimizer", "parameters")
WIDTH, LAYERS, STEPS = 32, 4, 3


def stack(width: int = WIDTH, *, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(width, width, bias=bias) for _ in range(LAYERS))
    return nn.Sequential(*(each for layer in layers for each in (layer, nn.Tanh())))


def batch(width: int = WIDTH, rows: int = 8) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return torch.randn(rows, width, generator=drawn), torch.randn(rows, width, generator=drawn)


def compiled(
    offload: Sequence[str] | str | None,
    optimizer: str = "adam",
    model: nn.Module | None = None,
    **options: Any,
) -> CompiledModel:
    made = stack() if model is None else model
    given: dict[str, Any] = {"mesh": "1", "strategy": "data", "update": DEVICE, **options}
    return autopar.compile(
        made,
        batch(),
        loss=nn.functional.mse_loss,
        optimizer=OPTIMIZERS[optimizer](made),
        offload=offload,
        **given,
    )


def state_of(trainer: Any) -> dict[str, Tensor]:
    """Returns parameters and optimizer state by name."""
    found = dict(trainer.state_dict())
    for name, tensors in trainer.optimizer_state_dict()["state"].items():
        found.update({f"{kind}/{name}": tensor for kind, tensor in tensors.items()})
    return found


def trained(found: CompiledModel, steps: int = STEPS) -> tuple[list[float], dict[str, Tensor]]:
    """Returns the losses of some steps, and the state behind them."""
    with tempfile.TemporaryDirectory() as folder:
        found.save(f"{folder}/build")
        with autopar.load(f"{folder}/build", virtual=True) as trainer:
            losses = [trainer.step(batch()).item() for _ in range(steps)]
            return losses, state_of(trainer)


@cache
def plainly_trained(optimizer: str, options: tuple[tuple[str, Any], ...]) -> Any:
    return trained(compiled([], optimizer, **dict(options)))


def assert_trains_alike(found: CompiledModel, optimizer: str, **options: Any) -> None:
    """Compares training with that of a program whose state is on the device, to the bit."""
    losses, state = trained(found)
    expected, wanted = plainly_trained(optimizer, tuple(options.items()))
    assert losses == expected
    assert state.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(state[name], tensor), name


def train_on_a_rank(processes: Processes, build: str) -> tuple[list[float], dict[str, Any]]:
    """Trains on one rank of several; the second batch is one that is skipped."""
    x, y = batch()
    losses = []
    with open_trainer(build, processes=processes) as trainer:
        losses.append(trainer.step((x, y)).item())
        with suppress(NonFiniteLoss):
            trainer.step((x * float("inf"), y))
        losses += [trainer.step((x, y)).item() for _ in range(STEPS - 1)]
        return losses, {name: tensor.tolist() for name, tensor in state_of(trainer).items()}
