"""Files that compute sizes of sizes do at open ones what they do where these are bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from autopar.base.errors import InvalidInputError
from autopar.frontend.onnx import import_onnx
from autopar.frontend.onnx.model.problems import ModelError
from autopar.ir.program import Program
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.ports.open_inputs import serial_for
from tests.frontend.onnx.graphs import FLOAT, INT64, Array, graph, model, node

LENGTHS = (0, 1, 2, 3, 4, 5, 7, 8, 13, 21, 160, 161)
INTEGERS = {"zero": 0, "one": 1, "two": 2, "seven": 7, "last": -1, "second_last": -2}
STORED: dict[str, Array] = {name: np.array([number]) for name, number in INTEGERS.items()}
STORED |= {"point": np.array([[1.0]], np.float32), "down": np.array(-1), "single": np.array(1)}
LENGTH = node("Shape", "x", "l", start=1, end=2)
TO_A_MULTIPLE = (
    LENGTH,
    node("Mod", "l seven", "over"),
    node("Sub", "seven over", "lacking"),
    node("Mod", "lacking seven", "more"),
    node("Concat", "zero zero zero more", "pads", axis=0),
)
GRAPHS = {
    "padded to a multiple": (*TO_A_MULTIPLE, node("Pad", "x pads", "y")),
    "windows of what is padded": (
        *TO_A_MULTIPLE,
        node("Pad", "x pads", "padded"),
        node("Shape", "padded", "whole", start=1, end=2),
        node("Div", "whole seven", "windows"),
        node("Concat", "zero windows seven", "shape", axis=0),
        node("Reshape", "padded shape", "y"),
    ),
    "both ends cut off": (node("Slice", "x two second_last one", "y"),),
    "every other one without ends": (node("Slice", "x one second_last one two", "y"),),
    "back from the length": (
        LENGTH,
        node("Squeeze", "l", "count"),
        node("Sub", "count single", "end"),
        node("Range", "end down down", "places"),
        node("Gather", "x places", "y", axis=1),
    ),
    "as often as it is long": (
        LENGTH,
        node("Concat", "one l", "counts", axis=0),
        node("Tile", "point counts", "y"),
    ),
}


def run(program: Program, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return run_serial(program, weights, {"x": x})["y"]


def assert_as_bound(
    nodes: Sequence[onnx.NodeProto], stored: dict[str, Array], folder: Path, lengths: Sequence[int]
) -> None:
    path = folder / "model.onnx"
    read = {name for each in nodes for name in each.input}
    used = {name: array for name, array in {**STORED, **stored}.items() if name in read}
    onnx.save(model(graph(nodes, {"x": (FLOAT, ["b", "l"])}, ["y"], used), opset=18), path)
    opened = import_onnx(path)
    for length in lengths:
        x = torch.randn(2, length, generator=torch.Generator().manual_seed(0))
        bound = import_onnx(path, input_shapes={"x": [2, length]})
        wanted = run(bound.program, dict(bound.weights), x)
        found = run(serial_for(opened.program, {"x": x}), dict(opened.weights), x)
        assert torch.equal(found, wanted), length


@pytest.mark.parametrize("name", GRAPHS)
def test_sizes_of_sizes(name: str, tmp_path: Path) -> None:
    assert_as_bound(GRAPHS[name], {}, tmp_path, LENGTHS[:8])


def test_an_end_is_padded_with_the_other(tmp_path: Path) -> None:
    pads = np.array([0, 2, 0, 1])
    nodes = (node("Pad", "x pads", "y", mode="wrap"),)
    assert_as_bound(nodes, {"pads": pads}, tmp_path, (2, 3, 7))


def through_floats(operators: str, rounding: str, dtype: int = FLOAT) -> list[onnx.NodeProto]:
    """Nodes that make a tensor as long as what floating-point numbers make of a length."""
    nodes, name = [LENGTH, node("Cast", "l", "f", to=dtype)], "f"
    for at, operator in enumerate(operators.split()):
        nodes.append(node(operator, f"{name} c{at}", f"f{at}"))
        name = f"f{at}"
    if rounding:
        nodes.append(node(rounding, name, "rounded"))
        name = "rounded"
    return [
        *nodes,
        node("Cast", name, "new", to=INT64),
        node("Concat", "one new", "shape", axis=0),
        node("Expand", "point shape", "y"),
    ]


def constants(*numbers: float) -> dict[str, Array]:
    return {f"c{at}": np.array([number], np.float32) for at, number in enumerate(numbers)}


@pytest.mark.parametrize(
    ("operators", "numbers", "rounding"),
    [
        ("Mul", (0.5,), "Floor"),
        ("Mul", (1.5,), "Ceil"),
        ("Mul", (2,), ""),
        ("Div", (7,), "Floor"),
        ("Div", (160,), "Ceil"),
        ("Div", (1.5,), "Floor"),
        ("Add Div", (1, 2), ""),
        ("Mul Add", (0.25, 1.5), "Floor"),
    ],
)
def test_sizes_through_floating_point(
    operators: str, numbers: tuple[float, ...], rounding: str, tmp_path: Path
) -> None:
    assert_as_bound(through_floats(operators, rounding), constants(*numbers), tmp_path, LENGTHS)


@pytest.mark.parametrize(
    ("operators", "numbers"),
    [
        ("Mul", (0.6,)),
        ("Div Mul", (7, 7)),
        ("Div Add", (7, 0.5)),
        ("Mul", (0.015625,)),
        ("Mul", (1000,)),
        ("Sub Div", (3, 2)),
    ],
)
def test_what_is_rounded_on_the_way_names_the_size(
    operators: str, numbers: tuple[float, ...], tmp_path: Path
) -> None:
    path, nodes = tmp_path / "model.onnx", through_floats(operators, "Floor")
    stored = {**constants(*numbers), "one": STORED["one"], "point": STORED["point"]}
    onnx.save(model(graph(nodes, {"x": (FLOAT, ["b", "l"])}, ["y"], stored), opset=18), path)
    with pytest.raises(ModelError, match=r"'shape' follows from open sizes in .*\(bind l with"):
        import_onnx(path)


def test_a_size_may_count_as_a_number(tmp_path: Path) -> None:
    nodes = (
        LENGTH,
        node("Cast", "l", "f", to=FLOAT),
        node("Div", "f c0", "third"),
        node("Mul", "x third", "y"),
    )
    assert_as_bound(nodes, constants(3), tmp_path, LENGTHS[:8])


def test_what_torch_counts_is_laid_out_for_another_batch(tmp_path: Path) -> None:
    nodes = (
        node("Shape", "ids", "s72", end=1),
        node("Size", "mask", "all"),
        node("Div", "all s72", "rest"),
        node("Concat", "s72 rest", "shape", axis=0),
        node("Reshape", "mask shape", "y"),
    )
    inputs = {"ids": (FLOAT, ["s72", "s70"]), "mask": (FLOAT, ["s43", "s53"])}
    path = tmp_path / "model.onnx"
    onnx.save(model(graph(nodes, inputs, ["y"], {}), opset=18), path)
    opened = import_onnx(path)
    (narrowed, checked) = opened.report
    assert (narrowed.subject, narrowed.detail) == ("ids_0", "at least 1")
    assert checked.subject == "ids_0, mask_0, mask_1"
    for shape in ((2, 3), (1, 6), (4, 1)):
        given = {"ids": torch.zeros(2, 5), "mask": torch.rand(shape)}
        program = serial_for(opened.program, given)
        found = run_serial(program, opened.weights, given)["y"]
        assert torch.equal(found, given["mask"].reshape(2, -1))
    with pytest.raises(InvalidInputError, match=r"mask_1 is 3.*needs"):
        serial_for(opened.program, {"ids": torch.zeros(2, 5), "mask": torch.rand(3, 3)})


def test_a_small_table_is_cut_to_a_length(tmp_path: Path) -> None:
    nodes = (LENGTH, node("Slice", "table zero l one", "row"), node("Add", "x row", "y"))
    table = np.arange(8, dtype=np.int64).reshape(1, 8)
    inputs = {"x": (INT64, ["b", "l"])}
    stored = {"table": table, "zero": STORED["zero"], "one": STORED["one"]}
    path = tmp_path / "model.onnx"
    onnx.save(model(graph(nodes, inputs, ["y"], stored), opset=18), path)
    opened = import_onnx(path)
    given = {"x": torch.ones(2, 5, dtype=torch.int64)}
    found = run_serial(serial_for(opened.program, given), opened.weights, given)["y"]
    assert found.tolist() == [[1, 2, 3, 4, 5]] * 2
    with pytest.raises(InvalidInputError, match="l is at least 0 and at most 8"):
        serial_for(opened.program, {"x": torch.ones(2, 9, dtype=torch.int64)})
