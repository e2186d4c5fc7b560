"""Models with normalizations, and what tests of them run in real processes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import autopar
from autopar.runtime.job.processes import Processes
from tests.parallel.agreeing import said
from tests.parallel.targets import join

Norm = Callable[[int], nn.Module]


class Convolutions(nn.Module):
    """Classifies images."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.first = norm(8)
        self.inner = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.second = norm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.first(self.stem(x))), 2)
        x = functional.relu(x + self.second(self.inner(x)))
        found: Tensor = self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return found


class Rows(nn.Module):
    """Looks at rows of features."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 12), norm(12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(torch.tanh(self.norm(self.up(x))))
        return found


class Sorted(nn.Module):
    """Brings the rows of a batch into an order."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.up(torch.sort(x, dim=0).values)
        return found


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "batch": lambda: Convolutions(nn.BatchNorm2d),
    "averaged": lambda: Convolutions(lambda size: nn.BatchNorm2d(size, momentum=None)),
    "untracked": lambda: Convolutions(lambda size: nn.BatchNorm2d(size, track_running_stats=False)),
    "plain": lambda: Convolutions(lambda size: nn.BatchNorm2d(size, affine=False)),
    "synchronized": lambda: Convolutions(nn.SyncBatchNorm),
    "instance": lambda: Convolutions(
        lambda size: nn.InstanceNorm2d(size, affine=True, track_running_stats=True)
    ),
    "group": lambda: Convolutions(lambda size: nn.GroupNorm(4, size)),
    "rows": lambda: Rows(nn.BatchNorm1d),
    "averaged rows": lambda: Rows(lambda size: nn.BatchNorm1d(size, momentum=None)),
}


def made(name: str, size: int = 8) -> tuple[nn.Module, Tensor]:
    """Returns a model, and a batch of a size."""
    torch.manual_seed(0)
    model = MODELS[name]()
    shape = (6,) if isinstance(model, Rows) else (3, 12, 12)
    torch.manual_seed(size)
    return model, torch.randn(size, *shape)


def alone(model: nn.Module) -> nn.Module:
    """Returns a copy of a model that runs in one process of several: synchronized norms don't."""
    found = copy.deepcopy(model)
    for name, each in list(found.named_modules()):
        if isinstance(each, nn.SyncBatchNorm):
            plain = nn.BatchNorm2d(each.num_features)
            plain.load_state_dict(each.state_dict())
            setattr(found, name, plain)
    return found


def normalizing(
    processes: Processes, names: Sequence[str], mesh: str, strategy: str
) -> dict[str, list[str]]:
    """Trains models on the mesh and alone; returns what differs, by model."""
    join(processes)
    return {name: trained(name, mesh, strategy) for name in names}


def trained(name: str, mesh: str, strategy: str) -> list[str]:
    """Trains a model on batches of three sizes; returns what differs."""
    model, batch = made(name)
    reference = alone(model)
    parallel = autopar.parallelize(model, batch, mesh=mesh, strategy=strategy)
    (layout,) = parallel._parallel.runner.compiler.first.layouts
    problems = [] if "dp" in layout.sharded_axes else ["the batch isn't split"]
    both = (parallel, reference)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.02) for each in both]
    for size in (8, 8, 7, 2):
        _, batch = made(name, size)
        outputs = [module(batch) for module in both]
        problems += differing(f"outputs of {size}", *outputs)
        for output, optimizer in zip(outputs, optimizers, strict=True):
            optimizer.zero_grad()
            (output.square().mean() + output.sum() / 10).backward()
            optimizer.step()
    found = parallel.full_state_dict()
    for key, wanted in reference.state_dict().items():
        problems += differing(key, found[key], wanted)
    evaluated = [module.eval()(batch) for module in both]
    return problems + differing("evaluated", *evaluated)


def differing(name: str, found: Tensor, wanted: Tensor) -> list[str]:
    """Returns a line if two tensors differ by more than rounding."""
    error = (found.double() - wanted.double()).abs().max() / wanted.double().abs().max()
    return [] if error < 1e-4 else [f"{name}: {error:.1e}"]


def unsplit(processes: Processes) -> dict[str, Any]:
    """Asks for a batch to be split that can't be, and hands over parts of it all the same."""
    join(processes)
    torch.manual_seed(0)
    batch = torch.randn(4, 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parallel = autopar.parallelize(Sorted(), batch, mesh="dp=2", strategy="ddp")
    return {
        "warnings": [str(each.message) for each in caught],
        "parts": said(parallel, batch + processes.rank, local=True),
        "same": said(parallel, batch, local=True),
        "wholes": said(parallel, batch + processes.rank),
    }
