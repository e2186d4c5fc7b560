"""Models of transformers that are compiled once for any batch and length do as PyTorch does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW

import autopar
from autopar.runtime.api import run
from tests.zoo.open_models import OPEN_MODELS, Inputs, OpenModel, Sizes

pytest.importorskip("transformers")

SIZES: tuple[Sizes, ...] = ((1, 1), (3, 7), (5, 16), (2, 2), (7, 3), (4, 6))
MESHES = {"2x2": "data:0,tensor:1", "3": "tensor"}
PLANNED: Sizes = (4, 6)
FAST = (("distilbert", "2x2"), ("mistral", "3"))
TRAINED = ("electra", "opt", "qwen2", "vit")
BATCHES = (32, 31, 7, 1)


def compiled_once(case: OpenModel, model: nn.Module, mesh: str) -> autopar.CompiledModel:
    return autopar.compile(
        model,
        case.inputs(*PLANNED),
        mesh=mesh,
        strategy=MESHES[mesh],
        dynamic=case.dynamic,
    )


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        pytest.param(name, mesh, marks=() if (name, mesh) in FAST else pytest.mark.slow)
        for name in OPEN_MODELS
        for mesh in MESHES
    ],
)
def test_outputs_at_any_size(name: str, mesh: str, tmp_path: Path) -> None:
    case = OPEN_MODELS[name]
    model = case.build()
    compiled_once(case, model, mesh).save(tmp_path / "build")
    for sizes in SIZES:
        inputs = case.inputs(*sizes)
        found = run(tmp_path / "build", inputs, virtual=True)[case.output]
        with torch.no_grad():
            wanted = model(**inputs)[case.output]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def labelled(case: OpenModel, batch: int) -> Inputs:
    """Returns inputs with what a model compares its outputs with, which it does itself."""
    inputs = case.inputs(batch, 6)
    return {**inputs, "labels": inputs.get("input_ids", torch.arange(batch) % 5)}


def trained_eagerly(case: OpenModel) -> list[float]:
    model = case.build()
    optimizer = AdamW(model.parameters(), 1e-2)
    losses = []
    for batch in BATCHES:
        optimizer.zero_grad()
        loss = model(**labelled(case, batch)).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_steps_take_batches_of_any_size(name: str, tmp_path: Path) -> None:
    case = OPEN_MODELS[name]
    model, example = case.build(), labelled(case, BATCHES[0])
    autopar.compile(
        model,
        example,
        mesh="2x2",
        strategy="fsdp:0,tensor:1",
        optimizer=AdamW(model.parameters(), 1e-2),
        dynamic={label: {0: "batch"} for label in example},
    ).save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        losses = [trainer.step(labelled(case, batch)).item() for batch in BATCHES]
    torch.testing.assert_close(losses, trained_eagerly(case), rtol=1e-4, atol=0)
