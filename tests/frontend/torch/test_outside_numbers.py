"""Numbers outside of a model that its code changes are reported: a program doesn't change them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import autopar

CALLS = 0
SEEN = {"calls": 0, "rows": [0]}
NOTES = SimpleNamespace(rows=0)
SCALE = 2.0


def count() -> int:
    global CALLS
    CALLS += 1
    return CALLS


def count_in_a_dict() -> int:
    SEEN["calls"] += 1  # type: ignore[operator]
    return 1


def count_around() -> Callable[[], int]:
    held = [0]

    def counted() -> int:
        held[0] += 1
        return 1

    return counted


def note_rows() -> int:
    """Leaves the same in each run."""
    NOTES.rows = 3
    return 1


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * SCALE * count()


class Counted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * SCALE * count_in_a_dict()


class Noted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * SCALE * note_rows()


AROUND = count_around()


class Around(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * AROUND()


@pytest.mark.parametrize(
    ("kind", "subjects"),
    [
        (Scaled, ["CALLS of test_outside_numbers.py"]),
        (Counted, ["SEEN['calls'] of test_outside_numbers.py"]),
        (Around, ["held[0] of test_outside_numbers.py"]),
        (Noted, []),
    ],
)
def test_numbers_that_each_call_changes(kind: type[nn.Module], subjects: list[str]) -> None:
    compiled = autopar.compile(kind(), torch.ones(4, 2), mesh=2)
    found = [entry for entry in compiled.report if entry.category == "frozen"]
    assert [entry.subject for entry in found] == subjects
    assert all("programs don't: if the result depends on it, make it an" in e.detail for e in found)
    assert ("frozen (1):" in compiled.summary()) is bool(subjects)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def counting_loss(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean() * count()


class CountingLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.weight = 0, 2.0

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return (y - target).square().mean() * self.weight * self.calls


class Annealed:
    """A callable object, and a method."""

    def __init__(self) -> None:
        self.calls, self.inside = 0, SimpleNamespace(steps=0)

    def __call__(self, y: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return (y - target).square().mean() / self.calls

    def of(self, y: Tensor, target: Tensor) -> Tensor:
        self.inside.steps += 1
        return (y - target).square().mean() / self.inside.steps


def weighted(weight: float, y: Tensor, target: Tensor) -> Tensor:
    return weight * counting_loss(y, target)


HERE = "test_outside_numbers.py"
LOSSES = {
    "a function": (counting_loss, [f"CALLS of {HERE}"]),
    "a module": (CountingLoss(), [f"CountingLoss.calls of {HERE}"]),
    "an object": (Annealed(), [f"Annealed.calls of {HERE}"]),
    "a method": (Annealed().of, [f"Annealed.inside.steps of {HERE}"]),
    "a part of a function": (partial(weighted, 2.0), [f"CALLS of {HERE}"]),
    "one of torch": (nn.MSELoss(), []),
    "a function of torch": (nn.functional.mse_loss, []),
}


def frozen(compiled: autopar.Compiled) -> list[str]:
    return [entry.subject for entry in compiled.report if entry.category == "frozen"]


@pytest.mark.parametrize("name", LOSSES)
def test_numbers_that_a_loss_changes(name: str) -> None:
    loss, subjects = LOSSES[name]
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = (torch.ones(4, 2), torch.ones(4, 1))
    compiled = autopar.compile(model, batch, mesh=2, loss=loss, optimizer=optimizer)
    assert frozen(compiled) == subjects


def test_numbers_that_a_training_step_changes() -> None:
    def training_step(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).mean() * AROUND()

    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = autopar.compile(
        model, torch.ones(4, 2), mesh=2, training_step=training_step, optimizer=optimizer
    )
    assert frozen(compiled) == [f"held[0] of {HERE}"]


def test_a_parallelized_module_warns_of_numbers() -> None:
    with pytest.warns(UserWarning, match=r"CALLS of test_outside.*: each call changes it"):
        module = autopar.parallelize(Scaled(), torch.ones(4, 2), mesh=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(torch.ones(4, 2))
