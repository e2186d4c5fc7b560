"""Nodes at open sizes compute what they do where these are bound, and say what sizes may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from autopar.frontend.onnx import import_onnx
from autopar.frontend.onnx.model.problems import ModelError
from autopar.ir.used_sizes import used_sizes
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.ports.open_inputs import serial_for
from tests.frontend.onnx.graphs import FLOAT, INT64, Array, Shape, graph, model, node

Inputs = Mapping[str, tuple[int, Shape]]
INT8 = onnx.TensorProto.INT8

CASES = {
    "heads become a multiple": (
        node("Reshape", "x heads", "y"),
        {"x": (FLOAT, ["b", "l", "w"])},
        {"heads": np.array([0, 0, 4, -1])},
        {"b": 2, "l": 3, "w": 8},
    ),
    "a depth becomes a multiple": (
        node("Reshape", "x halves", "y"),
        {"x": (FLOAT, ["b", "w"])},
        {"halves": np.array([0, 2, -1])},
        {"b": 3, "w": 6},
    ),
    "cropped in the middle": (
        node("CenterCropPad", "x wanted", "y", axes=[1]),
        {"x": (FLOAT, ["b", "l"])},
        {"wanted": np.array([4])},
        {"b": 2, "l": 7},
    ),
    "padded in the middle": (
        node("CenterCropPad", "x wanted", "y", axes=[1]),
        {"x": (FLOAT, ["b", "l"])},
        {"wanted": np.array([9])},
        {"b": 2, "l": 4},
    ),
    "integers": (
        node("MatMulInteger", "x weight", "y"),
        {"x": (INT8, ["b", "w"]), "weight": (INT8, ["w", 3])},
        {},
        {"b": 2, "w": 5},
    ),
    "a scale per channel": (
        node("DequantizeLinear", "x scale", "y", axis=0),
        {"x": (INT8, ["c", "l"]), "scale": (FLOAT, ["c"])},
        {},
        {"c": 3, "l": 4},
    ),
    "channels that a weight fixes": (
        node("Conv", "x weight", "y"),
        {"x": (FLOAT, ["b", "c", "l"])},
        {"weight": np.ones((4, 2, 3), np.float32)},
        {"b": 2, "c": 2, "l": 6},
    ),
    "a norm whose width is open": (
        node("LayerNormalization", "x scale", "y"),
        {"x": (FLOAT, ["b", "w"]), "scale": (FLOAT, ["w"])},
        {},
        {"b": 3, "w": 5},
    ),
    "a diagonal": (
        node("EyeLike", "x", "y", k=1),
        {"x": (FLOAT, ["b", "l"])},
        {},
        {"b": 3, "l": 5},
    ),
    "frequencies": (
        node("DFT", "x _ axis", "y"),
        {"x": (FLOAT, ["b", "l", 1])},
        {"axis": np.array(1)},
        {"b": 2, "l": 6},
    ),
    "two values": (
        node("OneHot", "x depth values", "y"),
        {"x": (INT64, ["b"]), "values": (FLOAT, ["two"])},
        {"depth": np.array(4)},
        {"b": 3, "two": 2},
    ),
    "points of an image": (
        node("GridSample", "x grid", "y"),
        {"x": (FLOAT, ["b", 2, 5, 4]), "grid": (FLOAT, ["b", "h", "w", "two"])},
        {},
        {"b": 2, "h": 3, "w": 2, "two": 2},
    ),
    "no part of a shape": (
        node("Shape", "x", "y", start=1, end=1),
        {"x": (FLOAT, ["b", "l"])},
        {},
        {"b": 2, "l": 3},
    ),
}


def drawn(kind: int, shape: list[int]) -> Array:
    chance = np.random.default_rng(0)
    if kind == FLOAT:
        return chance.normal(size=shape).astype(np.float32)
    return chance.integers(0, 4, shape).astype(np.int8 if kind == INT8 else np.int64)


@pytest.mark.parametrize("case", CASES)
def test_nodes_compute_what_they_do_where_sizes_are_bound(case: str, tmp_path: Path) -> None:
    each, inputs, stored, sizes = CASES[case]
    path = tmp_path / "model.onnx"
    onnx.save(model(graph([each], inputs, ["y"], stored), opset=21), path)
    shapes = {n: [sizes.get(d, d) for d in dims] for n, (_, dims) in inputs.items()}
    arrays = {n: torch.from_numpy(drawn(kind, shapes[n])) for n, (kind, _) in inputs.items()}
    bound, opened = import_onnx(path, input_shapes=shapes), import_onnx(path)
    wanted = run_serial(bound.program, bound.weights, arrays)["y"]
    found = run_serial(serial_for(opened.program, arrays), opened.weights, arrays)["y"]
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)


def ranges(each: onnx.NodeProto, inputs: Inputs, folder: Path, **stored: Array) -> list[str]:
    path = folder / "model.onnx"
    onnx.save(model(graph([each], inputs, ["y"], stored), opset=21), path)
    used = used_sizes(import_onnx(path).program)
    return [f"{size.name}: {size.least} in steps of {size.step}" for size in used]


def test_a_width_that_is_cut_into_heads_becomes_a_multiple(tmp_path: Path) -> None:
    each = node("Reshape", "x heads", "y")
    inputs = {"x": (FLOAT, ["b", "l", "w"])}
    found = ranges(each, inputs, tmp_path, heads=np.array([0, 0, 4, -1]))
    assert found == ["b: 0 in steps of 1", "l: 0 in steps of 1", "w: 0 in steps of 4"]


def test_what_onnx_defines_by_sizes_names_those_that_are_open(tmp_path: Path) -> None:
    each = node("CausalConvWithState", "x weight", "y state")
    inputs = {"x": (FLOAT, ["b", "c", "l"]), "weight": (FLOAT, ["c", 1, "k"])}
    path = tmp_path / "model.onnx"
    onnx.save(model(graph([each], inputs, ["y"]), opset=27), path)
    with pytest.raises(ModelError, match="only where sizes are known, and b, c, l, k are open"):
        import_onnx(path)


def test_only_the_first_node_that_fails_is_told_of(tmp_path: Path) -> None:
    nodes = [node("Reshape", "x five", "odd"), node("CastLike", "odd x", "y")]
    body = graph(nodes, {"x": (FLOAT, [4, 4])}, ["y"], {"five": np.array([5])})
    path = tmp_path / "model.onnx"
    onnx.save(model(body), path)
    with pytest.raises(ModelError) as refused:
        import_onnx(path)
    assert [problem.where.split("'")[1] for problem in refused.value.problems] == ["Reshape#0"]
