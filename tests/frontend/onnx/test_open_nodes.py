"""Nodes at open sizes compute what they do where these are bound, and say what sizes may be."""

from __future__ import annotations

import itertools
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


def backwards(last: int, first: int, step: int) -> dict[str, Array]:
    given = {"last": last, "first": first, "axis": 1, "step": step}
    return {name: np.array([number]) for name, number in given.items()}


def resized(mode: str, how: str, **more: object) -> tuple[object, ...]:
    """A node that resizes 7 x 5 elements to 4 x 9, of which the latter are open before."""
    names = {"mode": mode, "coordinate_transformation_mode": how}
    each = node("Resize", "x _ _ sizes", "y", axes=[2, 3], **names, **more)
    inputs = {"x": (FLOAT, ["b", 2, "h", "w"])}
    return each, inputs, {"sizes": np.array([4, 9])}, {"b": 2, "h": 7, "w": 5}


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
    "a norm of channels that a scale fixes": (
        node("InstanceNormalization", "x scale bias", "y"),
        {"x": (FLOAT, ["b", "c", "l"])},
        {"scale": np.array([1, 2, 3], np.float32), "bias": np.zeros(3, np.float32)},
        {"b": 2, "c": 3, "l": 4},
    ),
    "a norm of groups of channels": (
        node("GroupNormalization", "x scale bias", "y", num_groups=2),
        {"x": (FLOAT, ["b", "c", "l"])},
        {"scale": np.array([1, 2, 3, 4], np.float32), "bias": np.zeros(4, np.float32)},
        {"b": 2, "c": 4, "l": 3},
    ),
    "the largest of each window of a row": (
        node("MaxPool", "x", "y", kernel_shape=[3], strides=[2], pads=[1, 1], dilations=[2]),
        {"x": (FLOAT, ["b", "c", "l"])},
        {},
        {"b": 2, "c": 3, "l": 9},
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
    "back to front": (
        node("Slice", "x last first axis step", "y"),
        {"x": (FLOAT, ["b", "l"])},
        backwards(-1, -(2**63), -1),
        {"b": 2, "l": 5},
    ),
    "every other one, back from the fourth": (
        node("Slice", "x last first axis step", "y"),
        {"x": (FLOAT, ["b", "l"])},
        backwards(3, -(2**31), -2),
        {"b": 2, "l": 7},
    ),
    "back from the end to the second": (
        node("Slice", "x last first axis step", "y"),
        {"x": (FLOAT, ["b", "l"])},
        backwards(2**63 - 1, 1, -1),
        {"b": 2, "l": 6},
    ),
    "parts of which the last is smaller": (
        node("Split", "x", "y y1 y2", num_outputs=3),
        {"x": (FLOAT, ["l"])},
        {},
        {"l": 7},
    ),
    "no part of a shape": (
        node("Shape", "x", "y", start=1, end=1),
        {"x": (FLOAT, ["b", "l"])},
        {},
        {"b": 2, "l": 3},
    ),
}


CASES |= {
    f"{mode} elements by {how}": resized(mode, how)
    for mode, how in itertools.product(
        ("nearest", "linear", "cubic"),
        (
            "half_pixel",
            "half_pixel_symmetric",
            "pytorch_half_pixel",
            "asymmetric",
            "align_corners",
            "tf_half_pixel_for_nn",
        ),
    )
}
CASES |= {
    "elements above": resized("nearest", "half_pixel", nearest_mode="ceil"),
    "cubes of what is inside": resized(
        "cubic", "half_pixel", exclude_outside=1, cubic_coeff_a=-0.5
    ),
    "linear by scales of integers": (
        node(
            "Resize", "x _ scales", "y", mode="linear", coordinate_transformation_mode="asymmetric"
        ),
        {"x": (FLOAT, ["b", 2, "h"])},
        {"scales": np.array([1, 1, 2], np.float32)},
        {"b": 2, "h": 5},
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


LAYERS = {
    "lstm": ("LSTM", 4, {}),
    "gru": ("GRU", 3, {"linear_before_reset": 1}),
    "rnn": ("RNN", 1, {}),
    "rnn of relu": ("RNN", 1, {"activations": ["Relu"] * 2}),
    "lstm without biases": ("LSTM", 4, {}),
}


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layer", LAYERS)
def test_recurrent_layers_take_any_length(
    layer: str, direction: str, layout: int, tmp_path: Path
) -> None:
    kind, gates, more = LAYERS[layer]
    bias = "_" if "without" in layer else "bias"
    ways = 2 if direction == "bidirectional" else 1
    more = {key: names[:ways] if isinstance(names, list) else names for key, names in more.items()}
    states = "h c" if kind == "LSTM" else "h"
    outputs = " ".join(["y", *(f"y{state}" for state in states.split())])
    each = node(
        kind, f"x w r {bias} _ {states}", outputs, direction=direction, layout=layout,
        hidden_size=5, **more,
    )  # fmt: skip
    dice = np.random.default_rng(0)
    shapes = {"w": (ways, gates * 5, 3), "r": (ways, gates * 5, 5), "bias": (ways, gates * 10)}
    stored = {n: dice.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}
    first = ["n", ways, 5] if layout else [ways, "n", 5]
    given = {"x": (FLOAT, ["n", "t", 3] if layout else ["t", "n", 3])}
    given |= dict.fromkeys(states.split(), (FLOAT, first))
    path = tmp_path / "model.onnx"
    onnx.save(model(graph([each], given, outputs.split(), stored), opset=21), path)
    opened = import_onnx(path)
    assert "autopar.recurrent" in [op.kind for op in opened.program.main.ops]
    for sizes in ({"n": 2, "t": 4}, {"n": 1, "t": 1}, {"n": 0, "t": 3}):
        shapes = {n: [sizes.get(d, d) for d in dims] for n, (_, dims) in given.items()}
        arrays = {n: torch.from_numpy(drawn(FLOAT, shape)) for n, shape in shapes.items()}
        bound = import_onnx(path, input_shapes=shapes)
        wanted = run_serial(bound.program, bound.weights, arrays)
        found = run_serial(serial_for(opened.program, arrays), opened.weights, arrays)
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("attributes", "why"),
    [({}, "with a reset before the product"), ({"clip": 2.0, "linear_before_reset": 1}, "clip")],
)
def test_other_recurrent_layers_need_a_length(
    attributes: Mapping[str, object], why: str, tmp_path: Path
) -> None:
    each = node("GRU", "x w r", "y", hidden_size=5, **attributes)
    inputs = {"x": (FLOAT, ["t", "n", 3]), "w": (FLOAT, [1, 15, 3]), "r": (FLOAT, [1, 15, 5])}
    path = tmp_path / "model.onnx"
    onnx.save(model(graph([each], inputs, ["y"]), opset=21), path)
    with pytest.raises(ModelError, match=rf"{why}.* there are t, which is open \(bind t with"):
        import_onnx(path)


SENTENCES = {
    "how many elements h times 0.69": (
        node("Resize", "x _ scales", "y"),
        {"scales": np.array([1, 0.7], np.float32)},
    ),
    "it keeps the aspect ratio": (
        node("Resize", "x _ _ sizes", "y", axes=[1], keep_aspect_ratio_policy="not_larger"),
        {"sizes": np.array([4])},
    ),
    "what is filtered through open sizes": (
        node("Resize", "x _ _ sizes", "y", axes=[1], mode="linear", antialias=1),
        {"sizes": np.array([4])},
    ),
    "pad mode 'wrap' by -1 and 1 of h elements": (
        node("Pad", "x pads", "y", mode="wrap"),
        {"pads": np.array([0, -1, 0, 1])},
    ),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_what_sizes_decide_names_them(sentence: str, tmp_path: Path) -> None:
    each, stored = SENTENCES[sentence]
    path = tmp_path / "model.onnx"
    body = graph([each], {"x": (FLOAT, ["b", "h"])}, ["y"], stored)
    onnx.save(model(body, opset=21), path)
    with pytest.raises(ModelError, match=rf"{sentence}.*\(bind h with --dims h=8"):
        import_onnx(path)


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


@pytest.mark.parametrize(("batch", "count"), [("b", 0), (2, 2), (1, 1)])
def test_a_length_that_a_file_has_as_a_number_is_that(
    batch: str | int, count: int, tmp_path: Path
) -> None:
    """As exporters leave it that trace attention: the length of the example."""
    path = tmp_path / "model.onnx"
    nodes = [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Reshape", "t wanted", "y")]
    stored = {"wanted": np.array([5, count, 3])}
    onnx.save(model(graph(nodes, {"x": (FLOAT, [batch, "l", 3])}, ["y"], stored)), path)
    imported = import_onnx(path)
    program = imported.program
    assert [port.shape[1] for port in program.signature.inputs if port.role == "input"] == [5]
    assert not program.relations
    x = torch.randn(count or 4, 5, 3)
    found = run_serial(serial_for(program, {"x": x}), imported.weights, {"x": x})
    torch.testing.assert_close(found["y"], x.transpose(0, 1))


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
