"""Models from elsewhere train on meshes as they do on one device: presets, random pins, odd meshes.

A part of the combinations runs with the fast tests, all of them by `make test-training`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import autopar
from autopar.base.errors import AnnotationError
from autopar.frontend.torch import Recipe, capture
from autopar.ir.mesh import ProcessMesh
from tests.given.random_pins import random_pins
from tests.zoo.models import ZOO, mixtral
from tests.zoo.training import (
    check,
    compare,
    compile_step,
    example_optimizer,
    train_eagerly,
    train_in_processes,
)

MESHES = {
    "2": ((2,), ("a",)),
    "3": ((3,), ("a",)),
    "2x2": ((2, 2), ("a", "b")),
    "2x3": ((2, 3), ("a", "b")),
    "2x2x2": ((2, 2, 2), ("a", "b", "c")),
}
ONE_AXIS = ("ddp", "zero1", "zero2", "fsdp", "tensor", "tensor+sequence", "context")
TWO_AXES = ("ddp:a,tensor:b", "fsdp:a,tensor:b", "zero1:a,context:b", "ddp:a,tensor:b,sequence:b")
PIN_SETS = 10

EXPERTS = [("2", "expert:a"), ("3", "expert:a"), ("2x2", "ddp:a,expert:b")]
"""Meshes and strategies of the model that has experts."""

SEQUENCE_PRESETS = ("sequence", "context")
WITHOUT_SEQUENCE = "resnet"

FAST_PRESETS = [
    ("gpt2", "2x3", "fsdp:a,tensor:b"),
    ("llama", "2x2", "ddp:a,tensor:b,sequence:b"),
    ("qwen2", "3", "context:a"),
    ("bert", "2x2x2", "zero1:a,tensor:b,ddp:c"),
    ("vit", "2", "zero2:a"),
    ("t5", "3", "tensor:a"),
    ("mixtral", "2", "fsdp:a"),
    ("whisper", "2x2", "ddp:a,tensor:b"),
    ("transformer", "3", "fsdp:a"),
    ("resnet", "2x2", "ddp:a,tensor:b"),
]
FAST_PINS = [("gpt2", "2x2x2", 0), ("llama", "3", 1), ("resnet", "2x3", 2)]


def mesh_of(name: str) -> ProcessMesh:
    shape, axes = MESHES[name]
    return ProcessMesh.of_shape(shape, axes)


def strategies(mesh: str) -> list[str]:
    """Returns the strategies that the full matrix trains on a mesh."""
    axes = MESHES[mesh][1]
    if len(axes) == 1:
        return [",".join(f"{each}:a" for each in preset.split("+")) for preset in ONE_AXIS]
    if len(axes) == 2:
        return list(TWO_AXES)
    return [f"{each},ddp:c" for each in TWO_AXES if not each.startswith("ddp")]


def _preset_cases() -> list[object]:
    every = [(model, mesh, each) for model in ZOO for mesh in MESHES for each in strategies(mesh)]
    every = [case for case in every if not _needs_a_sequence(case[0], case[2])]
    every += [("mixtral", mesh, each) for mesh, each in EXPERTS]
    rest = [case for case in every if case not in FAST_PRESETS]
    return [*FAST_PRESETS, *(pytest.param(*case, marks=pytest.mark.slow) for case in rest)]


def _needs_a_sequence(model: str, strategy: str) -> bool:
    """Whether a strategy splits a sequence that the model doesn't have."""
    return model == WITHOUT_SEQUENCE and any(each in strategy for each in SEQUENCE_PRESETS)


def _pin_cases() -> list[object]:
    every = [(model, mesh, seed) for model in ZOO for mesh in MESHES for seed in range(PIN_SETS)]
    rest = [case for case in every if case not in FAST_PINS]
    return [*FAST_PINS, *(pytest.param(*case, marks=pytest.mark.slow) for case in rest)]


@pytest.mark.parametrize(("model", "mesh", "strategy"), _preset_cases())
def test_presets_train_as_one_device(model: str, mesh: str, strategy: str) -> None:
    check(ZOO[model](), mesh_of(mesh), strategy)


@pytest.mark.parametrize("preset", SEQUENCE_PRESETS)
def test_models_without_a_sequence_refuse_to_split_it(preset: str) -> None:
    with pytest.raises(AnnotationError, match="sequence"):
        check(ZOO[WITHOUT_SEQUENCE](), mesh_of("2x2"), f"tensor:a,{preset}:b")


def test_wide_experts_are_computed_where_they_are() -> None:
    """Where experts are larger than what they compute, none is gathered."""
    example = mixtral(num_hidden_layers=1, intermediate_size=512, num_local_experts=16)
    found = autopar.compile(
        example.model,
        example.batch(0),
        mesh=mesh_of("3"),
        optimizer=example_optimizer(example.model),
        strategy="expert:a",
    )
    kinds = {op.kind for op in found.partitioned.main.ops}
    assert {"autopar.grouped_mm", "autopar.grouped_mm_backward"} <= kinds
    assert not any(kind.startswith("transformers.") for kind in kinds)
    check(example, mesh_of("3"), "expert:a")


@pytest.mark.parametrize(("model", "mesh", "seed"), _pin_cases())
def test_random_pins_train_as_one_device(model: str, mesh: str, seed: int) -> None:
    example = ZOO[model]()
    recipe = Recipe(example.loss, None, example_optimizer(example.model), 1.0)
    program = capture(example.model, example.batch(0), recipe).program
    pins = random_pins(program, mesh_of(mesh), model, seed)
    check(example, mesh_of(mesh), None, {pin.pattern: pin.dims_mapping for pin in pins})


IN_PROCESSES = [
    ("gpt2", "2", "fsdp:a"),
    ("llama", "2x2", "ddp:a,tensor:b"),
    ("resnet", "2x2", "ddp:a,tensor:b"),
    ("t5", "2", "tensor:a"),
]
FAST_IN_PROCESSES = IN_PROCESSES[:2]


@pytest.mark.parametrize(
    ("model", "mesh", "strategy"),
    [
        case if case in FAST_IN_PROCESSES else pytest.param(*case, marks=pytest.mark.slow)
        for case in IN_PROCESSES
    ],
)
def test_processes_train_as_one_device(
    model: str, mesh: str, strategy: str, tmp_path: Path
) -> None:
    build, example, processes = tmp_path / "build", ZOO[model](), mesh_of(mesh)
    compile_step(example, processes, strategy, {}, build)
    expected = train_eagerly(example)
    for found in train_in_processes(build, model, len(processes.process_ids)):
        compare(found, expected)
