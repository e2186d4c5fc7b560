"""Losses and functions that hold tensors of the user's model train as on one device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import autopar
from autopar.base.errors import InvalidInputError

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Penalty = Callable[[nn.Module, SGD], Callable[[], Tensor]]


class Scaled(nn.Module):
    """Holds a function that goes by the module from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6).reshape(3, 2))
        self.register_buffer("factor", torch.full((2,), 2.0))
        self.function = lambda x: x @ self.weight * self.factor

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def squares(model: nn.Module, optimizer: SGD) -> Callable[[], Tensor]:
    return lambda: sum((each.square().sum() for each in model.parameters()), torch.zeros(()))


def of_a_list(model: nn.Module, optimizer: SGD) -> Callable[[], Tensor]:
    held = list(model.parameters())
    return lambda: torch.cat([each.flatten() for each in held]).norm()


def of_groups(model: nn.Module, optimizer: SGD) -> Callable[[], Tensor]:
    return lambda: optimizer.param_groups[0]["params"][0].abs().sum()


def none(model: nn.Module, optimizer: SGD) -> Callable[[], Tensor]:
    return lambda: torch.zeros(())


def step_of(model: nn.Module, penalty: Penalty) -> tuple[SGD, Loss]:
    optimizer = SGD(model.parameters(), lr=0.1)
    added = penalty(model, optimizer)
    return optimizer, lambda found, target: (found - target).square().mean() + 0.1 * added()


def trained(model: nn.Module, penalty: Penalty, batches: list[Batch]) -> list[float]:
    """Returns the losses of plain PyTorch."""
    optimizer, loss = step_of(model, penalty)
    found = []
    for inputs, target in batches:
        optimizer.zero_grad()
        value = loss(model(inputs), target)
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


@pytest.mark.parametrize("penalty", [squares, of_a_list, of_groups, none])
def test_tensors_of_the_users_model_are_trained(penalty: Penalty, tmp_path: Path) -> None:
    batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(3)]
    model = Scaled()
    optimizer, loss = step_of(model, penalty)
    compiled = autopar.compile(model, batches[0], mesh=1, loss=loss, optimizer=optimizer)
    compiled.save(tmp_path / "build")
    trainer = autopar.load(tmp_path / "build")
    found = [float(trainer.step(batch)) for batch in batches]
    assert found == pytest.approx(trained(Scaled(), penalty, batches), rel=1e-5)


def test_a_step_that_calls_backward_itself_is_refused() -> None:
    def step(model: nn.Module, batch: Batch) -> Tensor:
        loss = (model(batch[0]) - batch[1]).square().mean()
        loss.backward()
        return loss.detach()

    model = nn.Linear(3, 2)
    batch = (torch.ones(4, 3), torch.ones(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidInputError, match=r"test_outside.py:\d+: .* calls no backward\(\);"):
        autopar.compile(model, batch, mesh=1, training_step=step, optimizer=optimizer)
