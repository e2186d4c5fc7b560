"""Real models compiled for many meshes, strategies and random pins, judged by ONNX Runtime.

A model is imported once and run by ONNX Runtime once; every case compiles it anew and runs all
ranks on the virtual mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from autopar import pipeline
from autopar.annotate import Pin
from autopar.cli.oracle import OnnxRuntime
from autopar.cost import Cluster
from autopar.frontend.onnx import ImportedModel, import_onnx
from autopar.ir.mesh import ProcessMesh
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.ports.ports import read_weights
from autopar.runtime.verification.verification import (
    FORCED_TOLERANCE,
    FREE_TOLERANCE,
    compare_outputs,
    verify_mesh,
)
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.given.models import MODELS, model_inputs, model_path
from tests.judges.reassociate import run_reassociated

MESHES = ((1,), (2,), (3,), (2, 4), (3, 2), (2, 2, 2))
PIN_SETS = 20
REASSOCIATIONS = 4


@dataclass(frozen=True)
class LoadedModel:
    """An imported model with inputs and the oracle's outputs.

    Attributes:
        name: A key of `tests.given.models.MODELS`.
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
    with WeightFile(model.weights_file) as file:
        # Plans may have taken weights apart.
        weights = read_weights(specialize(compiled.serial, {}), file, "cpu")
    result = verify_mesh(
        compiled.serial,
        weights,
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
    names = {port.user_label: port.name for port in program.signature.inputs}
    inputs = {names[label]: torch.as_tensor(array) for label, array in model.inputs.items()}
    serial = run_serial(program, weights, model.inputs)
    allowed = dict.fromkeys(serial, 0.0)
    for seed in range(REASSOCIATIONS):
        other = run_reassociated(program, {**weights, **inputs}, seed)
        for label, difference in compare_outputs(other, serial, FREE_TOLERANCE).items():
            allowed[label] = max(allowed[label], 2 * difference.relative)
    differences = compare_outputs(found, serial, FREE_TOLERANCE)
    return [str(each) for label, each in differences.items() if each.relative > allowed[label]]
