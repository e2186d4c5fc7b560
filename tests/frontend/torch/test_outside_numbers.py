"""Numbers outside of a model that its code changes are reported: a program doesn't change them."""

from __future__ import annotations

from collections.abc import Callable
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
