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

import torch
from torch import Tensor

from autopar import pipeline
from autopar.annotate import Pin
from autopar.cost import Cluster
from autopar.frontend.onnx import ImportedModel, import_onnx
from autopar.ir.mesh import ProcessMesh
from autopar.oracle import OnnxRuntime
from autopar.runtime.serial import run_serial
from autopar.runtime.verification import (
    FORCED_TOLERANCE,
    FREE_TOLERANCE,
    compare_outputs,
    verify_mesh,
)
from autopar.runtime.virtual import VirtualMesh
from autopar.runtime.weights import WeightFile, write_weights
from tests.models import MODELS, model_inputs, model_path
from tests.reassociate import run_reassociated

MESHES = ((1,), (2,), (3,), (2, 4), (3, 2), (2, 2, 2))
PIN_SETS = 20
REASSOCIATIONS = 4
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
    expected = OnnxRuntime(path, imported.program).run(given.arrays)
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
    found = mesh.run(model.inputs)
    differences = compare_outputs(found, model.expected, FREE_TOLERANCE)
    wrong = [str(difference) for difference in differences.values() if not difference.ok]
    if not model.quantized:
        return wrong
    amplified = judge_amplified(model, found) if wrong else []
    return [*amplified, *judge_ops(model, compiled, mesh)]


def judge_ops(model: LoadedModel, compiled: pipeline.Compiled, mesh: VirtualMesh) -> list[str]:
    """Returns the ops that are wrong when all ranks start from the serial program's inputs."""
    result = verify_mesh(
        compiled.serial,
        dict(model.imported.weights),
        mesh,
        model.inputs,
        forced=True,
        tolerance=FORCED_TOLERANCE,
    )
    return [str(each) for each in result.values if not each.ok]


def judge_amplified(model: LoadedModel, found: Mapping[str, Tensor]) -> list[str]:
    """Returns the outputs that are further off than rounding explains.

    Quantizing activations at run time amplifies rounding. A one-rank run whose sums are added in
    another order shows by how much; twice that is allowed.
    """
    program, weights = model.imported.program, dict(model.imported.weights)
    names = {port.label or port.name: port.name for port in program.signature.inputs}
    inputs = {names[label]: torch.as_tensor(array) for label, array in model.inputs.items()}
    serial = run_serial(program, weights, model.inputs)
    allowed = dict.fromkeys(serial, 0.0)
    for seed in range(REASSOCIATIONS):
        other = run_reassociated(program, {**weights, **inputs}, seed)
        for label, difference in compare_outputs(other, serial, FREE_TOLERANCE).items():
            allowed[label] = max(allowed[label], 2 * difference.relative)
    differences = compare_outputs(found, serial, FREE_TOLERANCE)
    return [str(each) for label, each in differences.items() if each.relative > allowed[label]]
