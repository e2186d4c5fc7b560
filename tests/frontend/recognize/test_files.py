"""Files that spell out causal attention and rotary embedding, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from autopar.frontend.onnx import import_onnx
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.ports.open_inputs import serial_for
from tests.frontend.onnx.graphs import Array, graph, model, node
from tests.frontend.recognize.spelled import kinds

TYPES = {"f16": onnx.TensorProto.FLOAT16, "f32": onnx.TensorProto.FLOAT}
NUMPY = {"f16": np.float16, "f32": np.float32}
TOLERANCE = {"f16": 4e-3, "f32": 4e-6}
SIZES = ((2, 5), (1, 1), (3, 8))

ROTATED = (
    node("Split", "q0 halves", "q1 q2", axis=-1),
    node("Neg", "q2", "q3"),
    node("Concat", "q3 q1", "q4", axis=-1),
    node("Mul", "q0 cos", "q5"),
    node("Mul", "q4 sin", "q6"),
    node("Add", "q5 q6", "q"),
)
LENGTH = (
    node("Shape", "q0", "length", start=2, end=3),
    node("Concat", "length length", "square", axis=0),
)
MASKS = {
    "a triangle of what hides": (
        node("Expand", "least square", "hides"),
        node("Trilu", "hides one", "mask", upper=1),
        node("Add", "s mask", "masked"),
    ),
    "ones in a triangle": (
        node("Expand", "seen square", "ones"),
        node("Trilu", "ones", "tril", upper=0),
        node("Equal", "tril zero", "past"),
        node("Where", "past least tril", "mask"),
        node("Add", "s mask", "masked"),
    ),
    "scores hidden": (
        node("Expand", "seen square", "ones"),
        node("Trilu", "ones", "tril", upper=0),
        node("Equal", "tril zero", "past"),
        node("Where", "past small s", "masked"),
    ),
    "places compared": (
        node("Squeeze", "length", "count"),
        node("Range", "begin count by", "i"),
        node("Unsqueeze", "i at_the_end", "rows"),
        node("LessOrEqual", "i rows", "sees"),
        node("Where", "sees s least", "masked"),
    ),
}
ATTENDED = (
    node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
    node("MatMul", "q kt", "s0"),
    node("Mul", "s0 scale", "s"),
)
WEIGHTED = (node("Softmax", "masked", "p", axis=-1), node("MatMul", "p v", "y"))


def write(path: Path, mask: str, dtype: str) -> None:
    """Writes a file of one attention, [b, 2, l, 8]."""
    element = NUMPY[dtype]
    shapes = {name: (TYPES[dtype], ["b", 2, "l", 8]) for name in ("q0", "k", "v")}
    shapes |= {name: (TYPES[dtype], [1, 1, "l", 8]) for name in ("cos", "sin")}
    numbers = {"least": -np.inf, "small": -3e4, "seen": 1, "zero": 0, "scale": 0.3}
    stored: dict[str, Array] = {name: np.array(n, element) for name, n in numbers.items()}
    stored |= {"one": np.array(1), "begin": np.array(0), "by": np.array(1)}
    stored |= {"at_the_end": np.array([1]), "halves": np.array([4, 4])}
    nodes = [*LENGTH, *ROTATED, *ATTENDED, *MASKS[mask], *WEIGHTED]
    read = {name for each in nodes for name in each.input}
    stored = {name: array for name, array in stored.items() if name in read}
    onnx.save(model(graph(nodes, shapes, ["y"], stored), opset=18), path)


def given(batch: int, length: int, dtype: str) -> dict[str, Array]:
    dice = np.random.default_rng(batch)
    shapes = dict.fromkeys(("q0", "k", "v"), (batch, 2, length, 8))
    shapes |= dict.fromkeys(("cos", "sin"), (1, 1, length, 8))
    return {name: dice.normal(size=shape).astype(NUMPY[dtype]) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_what_is_recognized_computes_what_the_file_says(
    mask: str, dtype: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    write(path, mask, dtype)
    plain = import_onnx(path)
    found = plain.recognized()
    assert {"roll", "scaled_dot_product_attention"} <= set(kinds(found.program))
    assert not {"bmm", "_softmax", "split_with_sizes"} & set(kinds(found.program))
    judge = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for sizes in SIZES:
        arrays = given(*sizes, dtype)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        (expected,) = judge.run(["y"], arrays)
        for each in (plain, found):
            program = serial_for(each.program, tensors)
            made = run_serial(program, each.weights, tensors)["y"].numpy()
            np.testing.assert_allclose(made, expected, TOLERANCE[dtype], TOLERANCE[dtype])
