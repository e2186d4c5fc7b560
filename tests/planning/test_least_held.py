"""A limit of memory that nothing can hold is refused before anything is planned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.compiled import CompiledModel
from autopar.cost import peak_rank_timeline
from autopar.frontend.torch import Recipe, capture
from autopar.partition.recompute import DoesNotFit
from autopar.partition.recompute.does_not_fit import NeverFits
from autopar.planning import least_held
from autopar.planning.least_held import LeastHeld

ROWS, WIDTH = 6, 24


class Layers(nn.Module):
    """Weights tied and not, a gradient that is a view, and a parameter that nobody reads."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        inner = int(torch.randint(8, 96, ()))
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.unread = nn.Parameter(torch.zeros(1000))

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.up.weight.t() @ self.up.weight
        return self.down(F.gelu(self.up(x))) * self.scale + self.shift.expand_as(x)


def optimizer_of(seed: int, module: nn.Module) -> torch.optim.Optimizer:
    used = [each for name, each in module.named_parameters() if name != "unread"]
    if seed % 2:
        return torch.optim.AdamW(used)
    return torch.optim.SGD(used, 0.1)


def made(seed: int) -> tuple[nn.Module, tuple[Tensor, Tensor], torch.optim.Optimizer]:
    module = Layers(seed)
    x = torch.randn(ROWS, WIDTH)
    return module, (x, x), optimizer_of(seed, module)


def compiled(seed: int, mesh: str, **said: Any) -> CompiledModel:
    module, batch, optimizer = made(seed)
    return autopar.compile(module, batch, mesh=mesh, loss=F.mse_loss, optimizer=optimizer, **said)


def held(seed: int) -> LeastHeld:
    module, batch, optimizer = made(seed)
    return LeastHeld.of(capture(module, batch, Recipe(F.mse_loss, optimizer=optimizer)).program)


@pytest.mark.parametrize(
    ("mesh", "devices", "seed", "chunks"),
    [("1", 1, 0, None), ("1", 1, 1, {}), ("3", 3, 2, {}), ("2x2", 4, 3, {}), ("3x2", 6, 1, {})],
)
def test_no_plan_holds_less(mesh: str, devices: int, seed: int, chunks: Any) -> None:
    """What is found to be the least is no less than the bound, and neither is what holds it."""
    bound = -(-held(seed).nbytes // devices)
    with pytest.raises(DoesNotFit) as miss:
        compiled(seed, mesh, memory=1, chunks=chunks)
    assert not isinstance(miss.value, NeverFits)
    assert bound <= miss.value.least_bytes


def test_what_is_counted() -> None:
    """Of Adam, four times the parameters that are read, and the batch."""
    module, (x, _), _ = made(1)
    read = sum(each.numel() for name, each in module.named_parameters() if name != "unread")
    assert held(1).gradient_bytes == 4 * read
    least = held(1).stored_bytes
    assert 12 * read + 2 * x.nbytes <= least <= 12 * read + 2 * x.nbytes + 64


def test_an_impossible_limit_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(least_held, "FEW_OPS", 0)
    bound = -(-held(1).nbytes // 4)
    message = r"holds at least .* alone, .* more than the limit of .*; raise the limit well above"
    with pytest.raises(NeverFits, match=message) as miss:
        compiled(1, "2x2", memory=bound - 1)
    assert miss.value.least_bytes == bound
    assert "split them over at least 5 devices" in str(miss.value)
    # What the bound doesn't prove impossible is looked at.
    with pytest.raises(DoesNotFit) as other:
        compiled(1, "2x2", memory=bound, chunks={})
    assert not isinstance(other.value, NeverFits)


def test_what_may_wait_on_the_host_is_not_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(least_held, "FEW_OPS", 0)
    for said in ({"cluster": "h100"}, {"offload": "optimizer"}):
        with pytest.raises(DoesNotFit) as miss:
            compiled(1, "1", memory=1, chunks={}, **said)
        assert not isinstance(miss.value, NeverFits)


def test_inference_holds_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(least_held, "FEW_OPS", 0)
    module, (x, _), _ = made(0)
    with pytest.raises(NeverFits, match=r"at least .*, parameters and the batch alone") as miss:
        autopar.compile(module, x, mesh="2", memory=1000)
    whole = autopar.compile(module, x, mesh="2")
    assert miss.value.least_bytes <= peak_rank_timeline(whole.partitioned).peak_bytes
