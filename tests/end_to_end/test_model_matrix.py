"""Every rank of every real model equals ONNX Runtime, on every mesh, strategy and pin set.

`make test-models` runs all of it; `make test` the rows that aren't marked slow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.given.models import MODELS
from tests.given.presets import data_and_tensor
from tests.given.random_pins import random_pins
from tests.judges.model_matrix import (
    MESHES,
    PIN_SETS,
    LoadedModel,
    compile_case,
    judge,
    load,
    mesh_of,
)

FAST_MODELS = ("minilm", "magika", "silero_vad")
FAST_MESHES = ((2, 4), (3, 2))
FAST_PIN_SETS = 2


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(request.param, _folder(tmp_path_factory))


def _folder(factory: pytest.TempPathFactory) -> Path:
    folder = factory.getbasetemp() / "imported"
    folder.mkdir(exist_ok=True)
    return folder


def _cases(fast_pin_sets: int, pin_sets: int) -> list[object]:
    """Returns (model, mesh, number) parameters, those beyond the fast subset marked slow."""
    cases: list[object] = []
    for name in MODELS:
        for shape in MESHES:
            for number in range(pin_sets):
                fast = name in FAST_MODELS and shape in FAST_MESHES and number < fast_pin_sets
                marks = [pytest.mark.models, *([] if fast else [pytest.mark.slow])]
                label = f"{name}-{'x'.join(map(str, shape))}-{number}"
                cases.append(pytest.param(name, shape, number, marks=marks, id=label))
    return cases


@pytest.mark.parametrize(("model", "shape", "number"), _cases(3, 3), indirect=["model"])
def test_strategies_equal_onnx_runtime(
    model: LoadedModel, shape: tuple[int, ...], number: int
) -> None:
    mesh = mesh_of(shape)
    strategy = (data_and_tensor(mesh), "fsdp", "auto")[number]
    assert judge(model, compile_case(model, mesh, strategy)) == []


@pytest.mark.parametrize(
    ("model", "shape", "number"), _cases(FAST_PIN_SETS, PIN_SETS), indirect=["model"]
)
def test_random_pins_equal_onnx_runtime(
    model: LoadedModel, shape: tuple[int, ...], number: int
) -> None:
    mesh = mesh_of(shape)
    pins = random_pins(model.imported.program, mesh, model.name, number)
    assert judge(model, compile_case(model, mesh, None, pins)) == []
