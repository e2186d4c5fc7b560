"""Real models compiled for many meshes, strategies and random pins, judged by ONNX Runtime.

A model is imported once and run by ONNX Runtime once; every case compiles it anew and runs all
ranks on the virtual mesh.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from torch import Tensor

from autopar import pipeline
from autopar.annotate import Pin
from autopar.cost import Cluster
from autopar.frontend.onnx import ImportedModel, import_onnx
from autopar.ir.mesh import ProcessMesh
from autopar.oracle import onnx_outputs
from autopar.runtime.verification import (
    FORCED_TOLERANCE,
    FREE_TOLERANCE,
    Verification,
    compare_outputs,
    verify_mesh,
)
from autopar.runtime.virtual import VirtualMesh
from autopar.runtime.weights import WeightFile, write_weights
from tests.models import MODELS, model_inputs, model_path

MESHES = ((1,), (2,), (3,), (2, 4), (3, 2), (2, 2, 2))
PIN_SETS = 20
SPLITS_PER_PIN_SET = 5


@dataclass(frozen=True)
class LoadedModel:
    """An imported model with inputs and the oracle's outputs.

    Attributes:
        name: A key of `tests.models.MODELS`.
        imported: Program and weights.
        weights_file: The weights, written once for all cases.
        inputs: Arrays by name.
        expected: Outputs by name, as ONNX Runtime computes them.
    """

    name: str
    imported: ImportedModel
    weights_file: Path
    inputs: Mapping[str, object]
    expected: Mapping[str, Tensor]

    @cached_property
    def quantized(self) -> bool:
        """Whether activations are quantized at run time."""
        return MODELS[self.name].quantized


@lru_cache(maxsize=len(MODELS))
def load(name: str, folder: Path) -> LoadedModel:
    """Returns a model ready to be compiled."""
    path, given = model_path(name), model_inputs(name)
    imported = import_onnx(path, dims=given.dims, input_shapes=given.input_shapes)
    weights_file = folder / f"{name}.safetensors"
    write_weights(weights_file, imported.weights)
    expected = onnx_outputs(path, given.arrays)
    return LoadedModel(name, imported, weights_file, given.arrays, expected)


def mesh_of(shape: tuple[int, ...]) -> ProcessMesh:
    """Returns the mesh of a shape with the default axis names."""
    return ProcessMesh.of_shape(shape)


def compile_case(
    model: LoadedModel, mesh: ProcessMesh, strategy: str | None, pins: tuple[Pin, ...] = ()
) -> pipeline.Compiled:
    """Compiles a model, verifying the program between all passes."""
    options = pipeline.CompileOptions(mesh, Cluster.load("cpu"), strategy, pins)
    return pipeline.compile_program(model.imported.program, options)


def random_pins(model: LoadedModel, mesh: ProcessMesh, seed: int) -> tuple[Pin, ...]:
    """Returns pins of randomly chosen values, each split over at least one mesh axis.

    Values of all roles take part; sizes need not divide, and may be smaller than the axis.
    """
    chance = random.Random(f"{model.name} {mesh.shape} {seed}")
    main = model.imported.program.main
    large = [value for value in main.values.values() if max(value.global_shape, default=1) > 1]
    pins = []
    for value in chance.sample(large, min(len(large), SPLITS_PER_PIN_SET + 1)):
        shape = value.global_shape
        entries: list[list[str]] = [[] for _ in shape]
        axes = chance.sample(mesh.dim_names, chance.randint(1, mesh.ndim))
        for axis in axes:
            entries[chance.choice([at for at, size in enumerate(shape) if size > 1])].append(axis)
        mapping = tuple(tuple(entry) if entry else -1 for entry in entries)
        pins.append(Pin(value.name, mapping, f"pin set {seed}"))
    return tuple(pins)


def judge(model: LoadedModel, compiled: pipeline.Compiled) -> list[str]:
    """Returns what is wrong with a compiled model: nothing, if it equals the oracle."""
    with WeightFile(model.weights_file) as weights:
        mesh = VirtualMesh(compiled.deployment, weights)
    if model.quantized:
        return judge_quantized(model, compiled, mesh)
    found = mesh.run(model.inputs)
    differences = compare_outputs(found, model.expected, FREE_TOLERANCE)
    return [str(difference) for difference in differences.values() if not difference.ok]


def judge_quantized(
    model: LoadedModel, compiled: pipeline.Compiled, mesh: VirtualMesh
) -> list[str]:
    """Judges every op on identical inputs, where rounding amplifies reassociated sums."""
    result: Verification = verify_mesh(
        compiled.serial,
        dict(model.imported.weights),
        mesh,
        model.inputs,
        forced=True,
        tolerance=FORCED_TOLERANCE,
    )
    return [str(each) for each in result.values if not each.ok]


__all__ = [
    "MESHES",
    "PIN_SETS",
    "LoadedModel",
    "compile_case",
    "judge",
    "load",
    "mesh_of",
    "random_pins",
]
