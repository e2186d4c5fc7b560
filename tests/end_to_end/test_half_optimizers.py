"""Parameters of 16 bits are updated as by torch's own optimizers, kernel or no kernel."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar

STEPS = 3

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda given: torch.optim.SGD(given, 0.02),
    "sgd that is fused": lambda given: torch.optim.SGD(given, 0.02, fused=True),
    "momentum": lambda given: torch.optim.SGD(given, 0.02, momentum=0.9, nesterov=True),
    "adam": lambda given: torch.optim.Adam(given, 0.1, eps=1e-4),
    "adamw": lambda given: torch.optim.AdamW(given, 0.1, eps=1e-4),
    "adagrad": lambda given: torch.optim.Adagrad(given, 0.1, eps=1e-4),
}


def loss(found: Tensor, target: Tensor) -> Tensor:
    return ((found - target).float() ** 2).sum() / 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_of_16_bits_are_updated(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(32, 32).to(dtype)
    batch = torch.randn(8, 32).to(dtype), torch.randn(8, 32).to(dtype)
    # The specification is what torch does in float32, which all its kernels get right.
    wanted = copy.deepcopy(model).float()
    optimizer = OPTIMIZERS[name](wanted.parameters())
    step = autopar.compile(
        model, batch, mesh="2", loss=loss, optimizer=OPTIMIZERS[name](model.parameters())
    )
    step.save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        for _ in range(STEPS):
            trainer.step(batch)
            optimizer.zero_grad()
            loss(wanted(batch[0].float()), batch[1].float()).backward()
            optimizer.step()
        found = trainer.state_dict()
    rounded = torch.finfo(dtype).eps
    for key, parameter in wanted.state_dict().items():
        moved = (parameter - model.state_dict()[key].float()).abs().max()
        off = (found[key].float() - parameter).abs().max()
        assert off < 10 * rounded * max(1, parameter.abs().max())
        assert off < 0.2 * moved
