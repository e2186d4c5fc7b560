"""Models from elsewhere, searched within less memory than they want, train as on one device."""

from __future__ import annotations

from pathlib import Path

import pytest

import autopar
from autopar.compiled import CompiledModel
from autopar.cost import memory_timeline
from autopar.partition.recompute import DoesNotFit
from tests.zoo.models import ZOO, Example
from tests.zoo.training import compare, example_optimizer, train_eagerly, train_on_mesh

PART = 0.7
"""Of the bytes that the fastest plan holds."""

FAST = "gpt2"
"""What isn't slow; tests of recomputation plan and price a resnet within less memory."""

BRIEF = 0.1
"""The effort of a search that isn't slow."""


def compiled(example: Example, effort: float, memory: int | None = None) -> CompiledModel:
    """Searches a training step on 2x2."""
    return autopar.compile(
        example.model,
        example.batch(0),
        mesh="2x2",
        loss=example.loss,
        optimizer=example_optimizer(example.model),
        clip_grad_norm=1.0,
        strategy="auto",
        memory=memory,
        effort=effort,
    )


def peak_bytes(found: CompiledModel) -> int:
    """Returns the most that a rank holds."""
    return memory_timeline(found.partitioned).peak_bytes


@pytest.mark.parametrize(
    ("name", "effort"),
    [(FAST, BRIEF), *(pytest.param(name, 1.0, marks=pytest.mark.slow) for name in ZOO)],
)
def test_models_train_within_less_memory(name: str, effort: float, tmp_path: Path) -> None:
    example = ZOO[name]()
    limit = int(PART * peak_bytes(compiled(example, effort)))
    try:
        found = compiled(example, effort, limit)
    except DoesNotFit as miss:
        # Where weights are most of what is held; what is said to be enough has to be.
        limit = miss.least_bytes
        found = compiled(example, effort, limit)
    assert peak_bytes(found) <= limit
    found.save(tmp_path / "build")
    compare(train_on_mesh(tmp_path / "build", example), train_eagerly(example))
