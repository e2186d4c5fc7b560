"""Models from elsewhere, cut into stages by predicted seconds, do as one device does."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import autopar
from autopar.runtime.api import run
from tests.zoo.models import ZOO, Example
from tests.zoo.training import (
    LEARNING_RATE,
    STEPS,
    TOLERANCE,
    example_optimizer,
    train_on_mesh,
)

FAST = (("gpt2", "zb-v"), ("t5", "1f1b"))
"""Tied embeddings; and an encoder, of whose output each stage of the decoder reads."""

INFERRED = ("bert", "t5")
"""Whose inference is always compared."""

CASES = [
    ("pp=2", "1f1b", None, 3),
    ("pp=3", "zb-v", None, 2),
    ("pp=2", "dualpipe-v", None, 6),
    ("pp=2,tp=2", "interleaved", "tensor:tp", 3),
    ("dp=2,pp=3", "zb-h1", "fsdp:dp", 3),
    ("pp=4", "gpipe", None, 6),
]


def accumulated(example: Example, microbatches: int) -> list[float]:
    """Returns the losses of a loop that accumulates gradients."""
    model = copy.deepcopy(example.model)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    losses = []
    for number in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for at in range(microbatches):
            loss = loss_of_part(example, model, example.batch(number), at, microbatches)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total)
    return losses


def loss_of_part(example: Example, model: nn.Module, batch: Any, at: int, count: int) -> Tensor:
    part = pytree.tree_map(lambda tensor: tensor.chunk(count)[at], batch)
    if example.loss is None:
        whole: Tensor = model(**part).loss
    else:
        inputs, target = part
        whole = example.loss(model(*inputs), target)
    return whole / count


@pytest.mark.parametrize(
    ("name", "mesh", "schedule", "strategy", "microbatches"),
    [
        pytest.param(name, *case, marks=() if (name, case[1]) in FAST else pytest.mark.slow)
        for name in ZOO
        for case in CASES
    ],
)
def test_pipelines_train_as_one_device(
    name: str, mesh: str, schedule: str, strategy: str | None, microbatches: int
) -> None:
    example = ZOO[name]()
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        step = autopar.compile(
            example.model,
            example.batch(0),
            mesh=mesh,
            loss=example.loss,
            optimizer=example_optimizer(example.model),
            clip_grad_norm=1.0,
            accumulate=microbatches,
            strategy=strategy,
            pipeline="pp",
            schedule=schedule,
        )
        assert any(op.stage for op in step.serial.main.ops)
        step.save(build)
        found = train_on_mesh(build, example).losses
    torch.testing.assert_close(found, accumulated(example, microbatches), rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize(
    ("name", "mesh", "microbatches"),
    [
        pytest.param(name, *case, marks=() if name in INFERRED else pytest.mark.slow)
        for name in ZOO
        for case in (("1", 3), ("pp=2", 4), ("pp=2,dp=2", 2))
    ],
)
def test_batches_in_microbatches_give_the_same(
    tmp_path: Path, name: str, mesh: str, microbatches: int
) -> None:
    example = ZOO[name]()
    model = example.model.eval()
    given = example.batch(0) if example.loss is None else example.batch(0)[0]
    with torch.no_grad():
        made = model(**given) if example.loss is None else model(*_listed(given))
    wanted = [each for each in pytree.tree_leaves(_plain(made)) if isinstance(each, Tensor)]
    pipeline = "pp" if "pp" in mesh else ""
    compiled = autopar.compile(
        model, given, mesh=mesh, pipeline=pipeline, microbatches=microbatches
    )
    compiled.save(tmp_path / "build")
    labels = [port.label for port in compiled.source.signature.inputs if port.role == "input"]
    feeds = given if example.loss is None else dict(zip(labels, _listed(given), strict=True))
    found = run(tmp_path / "build", feeds, virtual=True)
    torch.testing.assert_close([*found.values()], wanted, rtol=1e-4, atol=1e-5)


def _listed(given: Any) -> tuple[Tensor, ...]:
    return given if isinstance(given, tuple) else (given,)


def _plain(made: Any) -> Any:
    return dict(made) if hasattr(made, "keys") else made
