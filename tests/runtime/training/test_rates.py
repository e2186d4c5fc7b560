"""Learning rates have the precision of Python's numbers: trajectories are those of torch."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autopar.ir.builds.files import read_build
from autopar.modules import compile
from autopar.runtime.training.opening import open_trainer

Optimizer = Callable[..., torch.optim.Optimizer]

STEPS = 6


def train_with_torch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    for x, target in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("lr", [1e-3, 0.1, 3e-4])
@pytest.mark.parametrize(
    "make",
    [
        lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, weight_decay=0.01),
        lambda p, lr: torch.optim.SGD(p, lr, fused=False),
        torch.optim.Adam,
        lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.3),
        lambda p, lr: torch.optim.AdamW(p, lr, fused=False),
    ],
)
def test_parameters_of_64_bits_follow_torch(tmp_path: Path, make: Optimizer, lr: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3, dtype=torch.float64)
    start = {name: each.clone() for name, each in model.state_dict().items()}
    batches = [
        (torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64))
        for _ in range(STEPS)
    ]
    optimizer = make(model.parameters(), lr)
    loss = nn.functional.mse_loss
    compile(model, batches[0], mesh="2", loss=loss, optimizer=optimizer).save(tmp_path / "b")
    train_with_torch(model, optimizer, batches)
    trainer = open_trainer(tmp_path / "b", virtual=True)
    trainer.load_state_dict(start)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.7)
    for batch in batches:
        trainer.step(batch)
        scheduler.step()
    for name, found in trainer.state_dict().items():
        wanted = model.state_dict()[name]
        moved = (wanted - start[name]).abs().max()
        assert (found - wanted).abs().max() <= 1e-15 * wanted.abs().max() + 1e-14 * moved


def test_a_rate_of_32_bits_in_an_older_build_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("capture.capture", "step.update"):
        found = importlib.import_module(f"autopar.frontend.torch.{module}")
        monkeypatch.setattr(found, "RATE_DTYPE", torch.float32)
    model = nn.Linear(4, 3)
    batch = torch.randn(6, 4), torch.randn(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = nn.functional.mse_loss
    compile(model, batch, mesh="1", loss=loss, optimizer=optimizer).save(tmp_path / "b")
    (port,) = (p for p in read_build(tmp_path / "b").serial.signature.inputs if p.label == "lr")
    assert port.dtype == "f32"
    trainer = open_trainer(tmp_path / "b", virtual=True)
    trainer.step(batch)
    train_with_torch(model, optimizer, [batch])
    for name, found in trainer.state_dict().items():
        torch.testing.assert_close(found, model.state_dict()[name])


@pytest.mark.parametrize("fused", [True, False])
def test_parameters_of_32_bits_are_those_of_a_fused_step(tmp_path: Path, fused: bool) -> None:
    """Bit by bit, where torch runs the same kernel."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    start = copy.deepcopy(model.state_dict())
    batches = [(torch.randn(6, 4), torch.randn(6, 3)) for _ in range(STEPS)]
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=fused)
    loss = nn.functional.mse_loss
    compile(model, batches[0], mesh="1", loss=loss, optimizer=optimizer).save(tmp_path / "b")
    train_with_torch(model, optimizer, batches)
    trainer = open_trainer(tmp_path / "b", virtual=True)
    trainer.load_state_dict(start)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.7)
    for batch in batches:
        trainer.step(batch)
        scheduler.step()
    for name, found in trainer.state_dict().items():
        if fused:
            assert torch.equal(found, model.state_dict()[name])
        else:
            torch.testing.assert_close(found, model.state_dict()[name], rtol=3e-7, atol=1e-8)
