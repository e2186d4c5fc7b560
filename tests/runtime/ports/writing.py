"""A model that writes to its batch, and what tests of it run in real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autopar
from autopar.parallel.sized import SizedVariant
from autopar.runtime.api import load
from autopar.runtime.job.processes import Processes
from autopar.runtime.ports.boxes import take
from tests.parallel.targets import join

Batch = dict[str, Tensor]


class Writer(nn.Module):
    """Writes to all that it is given: also what has a gradient, if it `learns`."""

    def __init__(self, learns: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10)
        self.scale = nn.Parameter(torch.full((3,), 0.5))
        self.learns = learns

    def forward(self, ids: Tensor, weights: Tensor, labels: Tensor) -> dict[str, Tensor]:
        labels.masked_fill_(labels == -100, 1)
        ids[:, 0] = 7
        before = weights.clone()
        weights *= 2
        if self.learns:
            weights += self.scale
        hidden = self.head(self.table(ids)) * weights.mean(1)[:, None, None]
        loss = nn.functional.cross_entropy(hidden.flatten(0, 1), labels.flatten())
        return {"loss": loss + self.scale.sum() ** 2, "before": before, "labels": labels}


def writer(learns: bool = False) -> Writer:
    """Returns a model in float64, always the same."""
    torch.manual_seed(0)
    return Writer(learns).double()


def batch_of(number: int) -> Batch:
    """Returns a batch; each call makes new tensors."""
    draw = torch.Generator().manual_seed(number)
    labels = torch.randint(0, 10, (12, 5), generator=draw)
    labels[::2, -2:] = -100
    ids = torch.randint(0, 10, (12, 5), generator=draw)
    weights = torch.randn(12, 3, generator=draw, dtype=torch.float64)
    return {"ids": ids, "weights": weights, "labels": labels}


def part(batch: Batch, rank: int) -> Batch:
    """Returns a copy of what one of two ranks reads of a batch."""
    return {name: each.chunk(2)[rank].clone() for name, each in batch.items()}


def off(found: Any, expected: Any) -> float:
    """Returns how far tensors, or those of a dict, are off."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        return max(off(found[name], each) for name, each in expected.items())
    return float((found - expected).abs().max())


def eager_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, number: int
) -> tuple[Any, Batch]:
    """Takes a step and returns the loss, and what is left in the batch."""
    batch = batch_of(number)
    optimizer.zero_grad()
    loss = model(**batch)["loss"]
    loss.backward()
    optimizer.step()
    return loss.detach(), {name: each.detach() for name, each in batch.items()}


def training(processes: Processes, build: Path) -> list[float]:
    """Returns how far losses and batches are off, with global batches and with parts."""
    model = writer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    with load(build, processes=processes) as trainer:
        for number in range(4):
            loss, left = eager_step(model, optimizer, number)
            batch = batch_of(number)
            if number % 2:
                batch, left = part(batch, processes.rank), part(left, processes.rank)
            found.append(off(trainer.step(batch, local=bool(number % 2)), loss))
            found.append(off(batch, left))
    return found


def calling(processes: Processes, build: Path) -> list[float]:
    """Returns how far outputs of a session and batches are off."""
    with load(build, processes=processes) as session, torch.no_grad():
        found = []
        for run in (session, session.run):
            batch, expected = batch_of(5), batch_of(5)
            outputs = writer()(**expected)
            given = run(batch) if run != session else session(**batch)
            found.append(off(given, outputs) if given else 0.0)
            found.append(off(batch, expected))
        return found


def _read(parallel: Any, batch: Batch) -> Batch:
    """Returns a copy of what a rank reads of a batch."""
    boxes = SizedVariant(parallel._parallel.runner.compiler.first).boxes
    return {name: take(each, boxes[name]).clone() for name, each in batch.items()}


def own_loop(processes: Processes) -> tuple[list[float], str]:
    """Returns how far a parallel module, its gradients and batches are off.

    And why a part isn't taken to which a model writes what has a gradient.
    """
    found = []
    join(processes)
    for learns, local in ((False, False), (False, True), (True, False)):
        model = writer(learns)
        parallel = autopar.parallelize(writer(learns), batch_of(0), mesh="dp=2", strategy="fsdp:dp")
        batch, expected = batch_of(1), batch_of(1)
        if local:
            batch = _read(parallel, batch)
        for each, given, more in ((model, expected, {}), (parallel, batch, {"local": local})):
            outputs = each(**given, **more)
            # What was written to has a gradient, as it has without a compiler.
            (outputs["loss"] + (given["weights"].sum() if learns else 0)).backward()
        left = {name: each.detach() for name, each in expected.items()}
        found.append(off(batch, _read(parallel, left) if local else left))
        for name, own in parallel.named_parameters():
            assert isinstance(own.grad, DTensor)
            found.append(off(own.grad.full_tensor(), model.get_parameter(name).grad))
    try:
        parallel(**_read(parallel, batch_of(0)), local=True)
    except autopar.AutoparError as error:
        return found, str(error)
    return found, ""
