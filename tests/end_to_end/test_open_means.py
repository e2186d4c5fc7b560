"""Means, variances and norms over an open dimension that is split: partial sums, not gathered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.runtime.api import run

Code = Callable[[Tensor], Tensor]

SIZES = (0, 1, 2, 3, 5, 8, 13)
WIDTH = 32


class Runs(nn.Module):
    """A module that is a function of rows that lie over a mesh."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.code = code
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Returns what the function makes of weighted rows."""
        return self.code(x * self.weight)


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[1:])


def group_norm(x: Tensor) -> Tensor:
    return F.group_norm(x.transpose(1, 2), 2)


def batch_norm(x: Tensor) -> Tensor:
    mean, variance = torch.zeros(WIDTH), torch.ones(WIDTH)
    found = F.batch_norm(x.transpose(1, 2), mean, variance, training=True)
    return torch.cat([(found**3).mean((0, 2)), mean, variance])


CASES: dict[str, tuple[Code, int]] = {
    "mean": (lambda x: x.mean(1), 0),
    "mean of all": (lambda x: x.mean(), 0),
    "half mean": (lambda x: x.bfloat16().mean(1).float(), 0),
    "variance": (lambda x: x.var(1), 0),
    "variance of all": (lambda x: x.var(correction=0), 0),
    "deviation": (lambda x: torch.stack(torch.std_mean(x, 1)), 0),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), 0),
    "softmax": (lambda x: x.softmax(1), 0),
    "layer norm": (layer_norm, 0),
    "rms norm": (lambda x: F.rms_norm(x, x.shape[1:]), 0),
    "group norm": (group_norm, 1),
    "batch norm": (batch_norm, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_no_dimension_is_gathered_for_how_long_it_is(name: str, tmp_path: Path) -> None:
    code, least = CASES[name]
    module = Runs(code).eval()
    compiled = autopar.compile(
        module,
        torch.ones(2, 20000, WIDTH),
        mesh="3",
        strategy="none",
        shard={"x": [-1, 0, -1]},
        dynamic={"x": {1: f"length={least}:" if least else "length"}},
    )
    summary = str(compiled.summary())
    assert "all_gather" not in summary, summary
    assert "all_reduce" in summary
    compiled.save(tmp_path / "build")
    for size in SIZES:
        if size < least:
            continue
        x = torch.randn(2, size, WIDTH, generator=torch.Generator().manual_seed(size))
        (found,) = run(tmp_path / "build", {"x": x}, virtual=True).values()
        torch.testing.assert_close(found, module(x), atol=1e-5, rtol=1e-4, equal_nan=True)
