"""Models whose sizes stay open: which are, what narrows them, and what has to be bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import autopar
from autopar.frontend.onnx import import_onnx
from autopar.frontend.onnx.imported import ImportedModel
from autopar.frontend.onnx.model.problems import ModelError
from autopar.ir.builds.manifest import NARROWED
from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.expr.expression import UNBOUNDED
from autopar.ir.program import Program
from autopar.ir.used_sizes import used_sizes
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.ports.open_inputs import serial_for
from tests.frontend.onnx.graphs import BOOL, FLOAT, INT64, graph, model, node


def imported(folder: Path, *nodes: onnx.NodeProto, inputs: object, **given: object) -> Program:
    return report(folder, *nodes, inputs=inputs, **given).program


def report(folder: Path, *nodes: onnx.NodeProto, inputs: object, **given: object) -> ImportedModel:
    dims = given.pop("dims", {})
    body = graph(list(nodes), inputs, ["y"], **given)  # type: ignore[arg-type]
    path = folder / "model.onnx"
    onnx.save(model(body), path)
    return import_onnx(path, dims=dims)  # type: ignore[arg-type]


def narrowed(found: ImportedModel) -> list[tuple[str, str, str]]:
    entries = (entry for entry in found.report if entry.category == NARROWED)
    return [(entry.subject, entry.detail, entry.loc.name) for entry in entries]


def ranges(program: Program) -> dict[str, tuple[int, int]]:
    return {size.name: (size.least, size.most) for size in used_sizes(program)}


def shapes(program: Program) -> list[str]:
    return [str(size) for port in program.signature.outputs for size in port.shape]


def test_sizes_that_follow_from_others_are_expressions(tmp_path: Path) -> None:
    flat = node("Reshape", "x shape", "y")
    program = imported(
        tmp_path,
        flat,
        inputs={"x": (FLOAT, ["batch", "length", 4])},
        initializers={"shape": np.array([-1, 4])},
    )
    assert shapes(program) == ["$batch * $length", "4"]


def test_a_table_that_is_cut_to_a_length_limits_it(tmp_path: Path) -> None:
    nodes = (
        node("Shape", "x", "s", start=1, end=2),
        node("Slice", "table zero s one", "cut"),
        node("Add", "x cut", "y"),
    )
    program = imported(
        tmp_path,
        *nodes,
        inputs={"x": (FLOAT, ["batch", "length"])},
        initializers={
            "table": np.ones((1, 512), np.float32),
            "zero": np.array([0]),
            "one": np.array([1]),
        },
    )
    assert ranges(program) == {"batch": (0, 2**31 - 1), "length": (0, 512)}


def test_a_size_that_a_weight_fixes_is_fixed(tmp_path: Path) -> None:
    bias, weight = np.ones(16, np.float32), np.ones((16, 4), np.float32)
    program = imported(
        tmp_path,
        node("Add", "x bias", "biased"),
        node("Gemm", "biased weight", "y"),
        inputs={"x": (FLOAT, ["batch", "width"])},
        initializers={"weight": weight, "bias": bias},
    )
    assert list(ranges(program)) == ["batch"]
    assert program.signature.inputs[0].shape[1] == 16


def test_differences_from_one_to_the_next_are_as_many(tmp_path: Path) -> None:
    nodes = (
        node("Slice", "x zero one axis", "first"),
        node("Concat", "first x", "more", axis=1),
        node("Slice", "more one end axis", "now"),
        node("Slice", "more zero last axis", "before"),
        node("Sub", "now before", "change"),
        node("Add", "x change", "y"),
    )
    numbers = {"zero": 0, "one": 1, "axis": 1, "end": 2**63 - 1, "last": -1}
    program = imported(
        tmp_path,
        *nodes,
        inputs={"x": (FLOAT, ["batch", "length"])},
        initializers={name: np.array([number]) for name, number in numbers.items()},
    )
    assert ranges(program)["length"][0] == 0
    assert shapes(program) == ["$batch", "$length"]


def test_a_loss_whose_body_onnx_gives_takes_any_batch(tmp_path: Path) -> None:
    loss = node("SoftmaxCrossEntropyLoss", "x labels", "y")
    program = imported(
        tmp_path, loss, inputs={"x": (FLOAT, ["batch", 5]), "labels": (INT64, ["batch"])}
    )
    assert list(ranges(program)) == ["batch"]


def test_a_window_that_must_fit_narrows_a_size_from_below(tmp_path: Path) -> None:
    pool = node("MaxPool", "x", "y", kernel_shape=[3, 2], strides=[2, 2])
    found = report(tmp_path, pool, inputs={"x": (FLOAT, ["batch", 3, "height", 8])})
    assert ranges(found.program)["height"] == (3, UNBOUNDED)
    assert shapes(found.program) == ["$batch", "3", "($height + 1) // 2 + -1", "4"]
    assert ("height", "at least 3", "MaxPool#0") in narrowed(found)


def test_a_range_that_the_user_gave_isnt_narrowed(tmp_path: Path) -> None:
    pool = node("MaxPool", "x", "y", kernel_shape=[3, 3])
    inputs = {"x": (FLOAT, ["batch", 3, "height", 8])}
    with pytest.raises(ModelError) as refused:
        report(tmp_path, pool, inputs=inputs, dims={"height": "1:64"})
    assert "node 'MaxPool#0'" in str(refused.value)
    assert "whether height - 2 < 1 (bind height with --dims" in str(refused.value)


def test_what_goes_down_and_up_again_takes_multiples(tmp_path: Path) -> None:
    nodes = (
        node("MaxPool", "x", "half", kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxPool", "half", "quarter", kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", "quarter none scales", "up", mode="linear"),
        node("Add", "up half", "y"),
    )
    found = report(
        tmp_path,
        *nodes,
        inputs={"x": (FLOAT, ["batch", 3, "height", 8])},
        initializers={
            "none": np.zeros(0, np.float32),
            "scales": np.array([1, 1, 2, 2], np.float32),
        },
    )
    (height,) = (size for size in used_sizes(found.program) if size.name == "height")
    assert (height.least, height.step) == (4, 4)
    assert shapes(found.program)[2] == "$height // 4 * 2"
    assert ("height", "a multiple of 4", "Add#3") in narrowed(found)


def test_dimensions_without_a_name_are_bound_by_ours(tmp_path: Path) -> None:
    inputs = {"x": (FLOAT, ["batch size", None])}
    found = report(tmp_path, node("Relu", "x", "y"), inputs=inputs, dims={"x_1": "2:8"})
    assert ranges(found.program)["x_1"] == (2, 8)
    found = report(tmp_path, node("Relu", "x", "y"), inputs=inputs, dims={"batch_size": 3})
    assert found.program.signature.inputs[0].shape[0] == 3


def test_what_a_translation_refuses_names_sizes(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"whether length is 1 decides what it does \(bind"):
        imported(tmp_path, node("Squeeze", "x", "y"), inputs={"x": (FLOAT, [2, "length"])})


def test_a_size_that_is_squeezed_is_one(tmp_path: Path) -> None:
    squeezed = node("Squeeze", "x axes", "y")
    given = {"axes": np.array([0])}
    inputs = {"x": (FLOAT, ["batch", "length"])}
    program = imported(tmp_path, squeezed, inputs=inputs, initializers=given)
    assert program.signature.inputs[0].shape[0] == 1
    assert shapes(program) == ["$length"]
    with pytest.raises(ModelError, match=r"axes \[0\] of shape \[batch, length\] aren't all of"):
        import_onnx(tmp_path / "model.onnx", dims={"batch": "2:"})


def test_a_range_decides_what_a_size_decides(tmp_path: Path) -> None:
    most = node("ReduceMax", "x", "y", axes=[1], keepdims=0)
    inputs = {"x": (FLOAT, ["batch", "length"])}
    message = (
        r"length == 0 \(bind length with --dims length=8, or say that it has at least 1, or 2: "
        r"--dims length=1:\)"
    )
    with pytest.raises(ModelError, match=message):
        report(tmp_path, most, inputs=inputs, dims={"length": "0:512"})
    assert ranges(imported(tmp_path, most, inputs=inputs))["length"][0] == 1


@pytest.mark.parametrize("count", [2, "length"])
def test_the_largest_elements_of_an_open_dimension(count: int | str, tmp_path: Path) -> None:
    nodes = (node("Shape", "x", "length", start=1), node("TopK", f"x {count}", "y at"))
    inputs = {"x": (FLOAT, ["batch", "length"])}
    program = imported(tmp_path, *nodes, inputs=inputs, initializers={"2": np.array([2])})
    assert ranges(program)["length"][0] == (2 if count == 2 else 0)
    with autopar.InferenceSession(tmp_path / "model.onnx", mesh=2, virtual=True) as session:
        for size in (2, 5):
            given = np.random.default_rng(size).random((3, size), np.float32)
            (found,) = session.run(None, {"x": given})
            np.testing.assert_array_equal(found, np.sort(given)[:, ::-1][:, : found.shape[1]])
            assert found.shape[1] == (2 if count == 2 else size)


def test_what_is_unrolled_needs_a_length(tmp_path: Path) -> None:
    add = node("Add", "sum item", "next")
    body = graph([add], {"sum": (FLOAT, [3]), "item": (FLOAT, [3])}, ["next"])
    scan = node("Scan", "start x", "y", body=body, num_scan_inputs=1)
    inputs = {"start": (FLOAT, [3]), "x": (FLOAT, ["length", 3])}
    with pytest.raises(
        ModelError, match=r"the length length that it scans is open, .*\(bind length with --dims"
    ):
        imported(tmp_path, scan, inputs=inputs)
    program = import_onnx(tmp_path / "model.onnx", dims={"length": 2}).program
    assert shapes(program) == ["3"]


def test_a_trip_count_is_no_open_size(tmp_path: Path) -> None:
    given = {"i": (INT64, []), "going": (BOOL, []), "v": (FLOAT, [3])}
    body = graph([node("Add", "v v", "w"), node("Identity", "going", "on")], given, ["on", "w"])
    nodes = (node("Shape", "x", "n", end=1), node("Loop", "n _ start", "y", body=body))
    inputs = {"x": (FLOAT, ["length", 3]), "start": (FLOAT, [3])}
    with pytest.raises(ModelError, match="its trip count length is open, and it is unrolled"):
        imported(tmp_path, *nodes, inputs=inputs)


def test_sizes_that_are_limited_together_are_checked_at_each_call(tmp_path: Path) -> None:
    nodes = (
        node("Concat", "x more", "both", axis=1),
        node("Shape", "both", "s", start=1, end=2),
        node("Slice", "table zero s one", "cut"),
        node("Add", "both cut", "y"),
    )
    inputs = {"x": (FLOAT, [2, "past"]), "more": (FLOAT, [2, "length"])}
    table = {
        "table": np.ones((1, 512), np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
    }
    program = imported(tmp_path, *nodes, inputs=inputs, initializers=table)
    assert shapes(program) == ["2", "$length + $past"]
    assert [each.told for each in program.relations] == ["length + past <= 512"]
    planned = import_onnx(tmp_path / "model.onnx", dims={"past": "500~:", "length": "200~:"})
    assert {size.name: size.planned for size in used_sizes(planned.program)} == {
        "past": 250,
        "length": 100,
    }
    found = import_onnx(tmp_path / "model.onnx", dims={"past": ":256", "length": ":256"})
    assert ranges(found.program) == {"past": (0, 256), "length": (0, 256)}
    assert not found.program.relations


def test_sizes_may_be_an_output(tmp_path: Path) -> None:
    given = {"x": (FLOAT, ["batch", 4])}
    program = imported(tmp_path, node("Shape", "x", "y"), inputs=given)
    found = run_serial(at_sizes(program, {"batch": 3}), {}, {"x": torch.ones(3, 4)})
    assert found["y"].tolist() == [3, 4]


@pytest.mark.parametrize("kind", ["InstanceNormalization", "GroupNormalization"])
def test_norms_of_each_sample_take_any_batch_and_length(kind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    groups = {} if kind == "InstanceNormalization" else {"num_groups": 2}
    given = {name: np.arange(1, 5).astype(np.float32) for name in ("scale", "bias")}
    body = graph(
        [node(kind, "x scale bias", "y", **groups)],
        {"x": (FLOAT, ["batch", 4, "length"])},
        ["y"],
        initializers=given,
    )
    path = tmp_path / "model.onnx"
    onnx.save(model(body, opset=21), path)
    found = import_onnx(path)
    assert ranges(found.program) == dict.fromkeys(("batch", "length"), (0, UNBOUNDED))
    serial = serial_for(found.program, {"x": x})
    (y,) = run_serial(serial, found.weights, {"x": torch.from_numpy(x)}).values()
    parts = x if kind == "InstanceNormalization" else x.reshape(2, 2, 6)
    apart = parts - parts.mean(-1, keepdims=True)
    normal = (apart / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    expected = normal * given["scale"][:, None] + given["bias"][:, None]
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_batch_of_nothing_is_reshaped_as_others_are(tmp_path: Path) -> None:
    """A shape copies its 0, and what is left of it doesn't depend on that."""
    given = {
        "inputs": {"x": (FLOAT, ["batch", 4, "h", "w"])},
        "initializers": {"s": np.array([0, 4, -1])},
    }
    rows = node("Reshape", "x s", "y")
    program = imported(tmp_path, rows, dims={"batch": 0}, **given)
    assert shapes(program) == ["0", "4", "$h * $w"]
    assert shapes(imported(tmp_path, rows, **given))[1:] == ["4", "$h * $w"]


def test_images_that_are_halved_have_rows_unless_told_otherwise(tmp_path: Path) -> None:
    """Nobody has to say so: it is what is left of the range, and the report says why."""
    weight = np.ones((4, 3, 3, 3), np.float32)
    halved = node("Conv", "x weight", "y", strides=[2, 2], pads=[1, 1, 1, 1])
    given = {"inputs": {"x": (FLOAT, ["batch", 3, "h", "w"])}, "initializers": {"weight": weight}}
    found = report(tmp_path, halved, **given)
    assert ranges(found.program)["h"] == (1, UNBOUNDED)
    assert [(subject, detail) for subject, detail, _ in narrowed(found)] == [
        ("h", "at least 1"),
        ("w", "at least 1"),
    ]
