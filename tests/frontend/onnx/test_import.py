"""From a model to a program: what is computed at once, what is recorded, what things are called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from autopar.annotate import Pin, apply_pins
from autopar.base.errors import AnnotationError, Loc
from autopar.frontend.onnx import ImportedModel
from autopar.frontend.onnx.model.problems import ModelError
from tests.frontend.onnx.graphs import (
    FLOAT,
    INT64,
    attribute,
    graph,
    imported,
    model,
    node,
    run,
    simple,
)

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.arange(12, dtype=np.float32).reshape(4, 3)


def kinds(result: ImportedModel) -> list[str]:
    return [op.kind for op in result.program.main.ops]


def roles(result: ImportedModel) -> dict[str, str]:
    main = result.program.main
    return {name: main.values[name].role for name in main.inputs}


def test_names_and_locations(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x fc.weight", "h", name="fc/MatMul"),
        node("Relu", "h", "act", name="relu"),
        node("Identity", "act", "y"),
    ]
    weight = {"fc.weight": W.T.copy()}
    result = imported(tmp_path, simple(nodes, {"x": X}, initializers=weight))
    mm, relu = result.program.main.ops
    assert (mm.kind, mm.results, mm.loc) == (
        "aten.mm.default",
        ("h",),
        Loc("model.onnx", 0, "fc/MatMul (MatMul)"),
    )
    assert (relu.kind, relu.results, relu.loc.name) == ("aten.relu.default", ("y",), "relu (Relu)")
    assert roles(result) == {"x": "input", "fc.weight": "parameter"}
    ports = result.program.signature
    assert [(port.name, port.label) for port in ports.inputs] == [
        ("x", "x"),
        ("fc.weight", "fc.weight"),
    ]
    assert [(port.label, port.shape) for port in ports.outputs] == [("y", (2, 4))]


def test_made_up_names_come_from_the_module(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x onnx::MatMul_7", "h", name="/model/enc/fc/MatMul"),
        node("Add", "enc.fc.bias h", "z", name="/model/enc/fc/Add"),
        node("MatMul", "z 12", "y", name="MatMul_3"),
    ]
    weights = {
        "onnx::MatMul_7": W.T.copy(),
        "enc.fc.bias": np.ones(4, np.float32),
        "12": np.ones((4, 4), np.float32),
    }
    result = imported(tmp_path, simple(nodes, {"x": X}, initializers=weights))
    assert list(result.weights) == ["enc.fc.weight", "enc.fc.bias", "matmul_3.weight"]


def test_a_pin_may_use_the_name_that_the_file_has(tmp_path: Path) -> None:
    """What the importer gave a better name is still found by that of its initializer."""
    weights = {"onnx::MatMul_7": W.T.copy()}
    nodes = [node("MatMul", "x onnx::MatMul_7", "y", name="/enc/fc/MatMul")]
    program = imported(tmp_path, simple(nodes, {"x": X}, initializers=weights)).program
    for pattern in ("onnx::MatMul_7", "enc.fc.weight"):
        values = apply_pins(program, "tp=2", [Pin(pattern, (-1, "tp"), "a test")]).main.values
        assert [name for name, value in values.items() if value.origin] == ["enc.fc.weight"]
    with pytest.raises(AnnotationError, match="matches no input"):
        apply_pins(program, "tp=2", [Pin("onnx::MatMul_8", (-1, "tp"), "a test")])


def resized(tmp_path: Path, scale: float, how: str) -> ImportedModel:
    image = np.zeros((1, 1, 4, 6), np.float32)
    scales = {"scales": np.array([1, 1, scale, 2], np.float32)}
    said = {"mode": "linear", "coordinate_transformation_mode": how}
    return imported(
        tmp_path,
        simple(node("Resize", "x _ scales", "y", **said), {"x": image}, initializers=scales),
    )


def test_a_resize_that_executors_do_in_two_ways_is_reported(tmp_path: Path) -> None:
    (entry,) = resized(tmp_path, 0.6, "align_corners").report
    assert (entry.category, entry.subject) == ("ambiguous", "node 'Resize#0'")
    assert "dimension 2 is resized to 2.4 elements, of which 2 are whole" in entry.detail
    assert not resized(tmp_path, 0.5, "align_corners").report
    assert not resized(tmp_path, 0.6, "half_pixel").report


def test_what_follows_from_shapes_is_computed(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axis", "rows"),
        node("Concat", "rows rest", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    constants = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1, 1])}
    result = imported(tmp_path, simple(nodes, {"x": X}, initializers=constants))
    assert kinds(result) == ["aten.view.default"]
    assert dict(result.program.main.ops[0].args)["size"] == (2, 3, 1)
    assert not result.weights


def test_small_computations_on_weights_are_folded(tmp_path: Path) -> None:
    nodes = [node("Transpose", "w", "wt"), node("MatMul", "x wt", "y")]
    result = imported(tmp_path, simple(nodes, {"x": X}, initializers={"w": W}))
    assert kinds(result) == ["aten.mm.default"]
    np.testing.assert_array_equal(result.weights["w"].numpy(), W.T)


def test_quantized_weights_stay_quantized(tmp_path: Path) -> None:
    quantized = np.random.default_rng(0).integers(-128, 128, (256, 512)).astype(np.int8)
    nodes = [node("DequantizeLinear", "w s z", "f"), node("MatMul", "x f", "y")]
    stored = {"w": quantized, "s": np.array(0.1, np.float32), "z": np.array(3, np.int8)}
    x = np.ones((2, 256), np.float32)
    result = imported(tmp_path, simple(nodes, {"x": x}, initializers=stored))
    assert result.weights["w"].numpy().dtype == np.int8
    assert [name for name, role in roles(result).items() if role == "parameter"] == ["w"]
    expected = x @ ((quantized.astype(np.float32) - 3) * np.float32(0.1))
    np.testing.assert_allclose(run(result, {"x": x})["y"], expected, rtol=1e-4)


def test_large_constants_are_computed_by_the_program(tmp_path: Path) -> None:
    one = numpy_helper.from_array(np.array([1.5], np.float32))
    nodes = [node("ConstantOfShape", "shape", "c", value=one), node("Add", "x c", "y")]
    shape = {"shape": np.array([512, 128, 3])}
    result = imported(tmp_path, simple(nodes, {"x": X[:1]}, initializers=shape))
    assert kinds(result) == ["aten.full.default", "aten.add.Tensor"]
    assert not result.weights


def test_a_large_constant_whose_content_is_needed_is_computed(tmp_path: Path) -> None:
    nodes = [
        node("Range", "zero many one", "r"),
        node("Gather", "r last", "n"),
        node("Expand", "x n", "y"),
    ]
    constants = {
        "zero": np.array(0),
        "many": np.array(20_000),
        "one": np.array(1),
        "last": np.array([19_999]),
    }
    x = np.ones((1,), np.float32)
    result = imported(tmp_path, simple(nodes, {"x": x}, initializers=constants))
    assert run(result, {"x": x})["y"].shape == (19_999,)


def test_inputs_that_nothing_reads_stay(tmp_path: Path) -> None:
    result = imported(tmp_path, simple(node("Relu", "x", "y"), {"x": X, "unused": X}))
    assert list(roles(result)) == ["x", "unused"]


def test_outputs_that_are_inputs_and_constants(tmp_path: Path) -> None:
    nodes = [node("Identity", "x", "same"), node("Shape", "x", "shape")]
    result = imported(tmp_path, simple(nodes, {"x": X}, "same shape"))
    assert not result.program.main.ops
    outputs = run(result, {"x": X})
    np.testing.assert_array_equal(outputs["same"], X)
    assert outputs["shape"].tolist() == [2, 3]


def test_an_input_with_a_default_is_a_constant(tmp_path: Path) -> None:
    proto = simple(node("Add", "x w", "y"), {"x": X, "w": X}, initializers={"w": X})
    result = imported(tmp_path, proto)
    assert roles(result) == {"x": "input", "w": "parameter"}
    assert result.report[0].subject == "input 'w'"


def test_sparse_initializers(tmp_path: Path) -> None:
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    indices = numpy_helper.from_array(np.array([[0, 1], [1, 2]]), "")
    proto = simple(node("Mul", "x w", "y"), {"x": X})
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    outputs = run(imported(tmp_path, proto), {"x": X})
    assert outputs["y"].tolist() == [[0, 5, 0], [0, 0, 35]]


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    leaky = node("LeakyRelu", "a", "b")
    attribute(helper.make_node("LeakyRelu", [], [], alpha=0.5), "alpha")
    reference = leaky.attribute.add(name="alpha", type=helper.make_attribute("a", 1.0).type)
    reference.ref_attr_name = "slope"
    scale = helper.make_function("own", "Leak", ["a"], ["b"], [leaky], imports, ["slope"])
    call = helper.make_node("Leak", ["x"], ["y"], name="call", domain="own", slope=0.25)
    body = graph([call], {"x": (FLOAT, [2, 3])}, ["y"])
    proto = model(body, opset_imports=imports, functions=[scale])
    result = imported(tmp_path, proto)
    assert run(result, {"x": -X})["y"].tolist() == (-X * 0.25).tolist()
    assert result.program.main.ops[0].loc.name == "call/LeakyRelu#0 (LeakyRelu)"


def branches(then: str, other: str) -> dict[str, object]:
    bodies = {"then_branch": then, "else_branch": other}
    return {
        name: graph([node(op_type, "x", f"{name}_y")], {}, [f"{name}_y"])
        for name, op_type in bodies.items()
    }


def test_if_on_a_known_condition(tmp_path: Path) -> None:
    choose = node("If", "c", "y", **branches("Relu", "NonZero"))
    result = imported(tmp_path, simple(choose, {"x": X}, initializers={"c": np.array(True)}))
    assert kinds(result) == ["aten.relu.default"]


def test_if_on_another_condition_computes_both(tmp_path: Path) -> None:
    choose = node("If", "c", "y", **branches("Neg", "Identity"))
    arrays = {"x": X, "c": np.array(True)}
    result = imported(tmp_path, simple(choose, arrays))
    assert "both branches are computed" in result.report[0].detail
    assert run(result, arrays)["y"].tolist() == (-X).tolist()
    assert run(result, {**arrays, "c": np.array(False)})["y"].tolist() == X.tolist()


def loop_body(condition: str) -> object:
    nodes = [node("Add", "v x", "v1"), node("Mul", "v1 two", "s"), node(condition, "c", "c1")]
    values = {"i": (INT64, []), "c": (TensorProto.BOOL, []), "v": (FLOAT, [2, 3])}
    return graph(nodes, values, ["c1", "v1", "s"], {"two": np.array(2, np.float32)})


def test_loops_are_unrolled(tmp_path: Path) -> None:
    loop = node("Loop", "n _ x", "last all", body=loop_body("Identity"))
    trips = {"n": np.array(3)}
    outputs = run(imported(tmp_path, simple(loop, {"x": X}, "last all", trips)), {"x": X})
    np.testing.assert_array_equal(outputs["last"], 4 * X)
    np.testing.assert_array_equal(outputs["all"], np.stack([4 * X, 6 * X, 8 * X]))


def test_a_loop_ends_on_its_condition(tmp_path: Path) -> None:
    loop = node("Loop", "n _ x", "last all", body=loop_body("Not"))
    trips = {"n": np.array(10**12)}
    outputs = run(imported(tmp_path, simple(loop, {"x": X}, "last all", trips)), {"x": X})
    np.testing.assert_array_equal(outputs["last"], 2 * X)


def refusal(folder: Path, proto: object) -> list[str]:
    with pytest.raises(ModelError) as raised:
        imported(folder, proto)  # type: ignore[arg-type]
    return [str(problem) for problem in raised.value.problems]


def test_loops_without_an_end(tmp_path: Path) -> None:
    values = {"i": (INT64, []), "c": (TensorProto.BOOL, []), "v": (INT64, [])}
    body = graph([node("Identity", "c", "c1"), node("Add", "v i", "v1")], values, ["c1", "v1"])
    loop = node("Loop", "n _ n", "k", name="forever", body=body)
    nodes = [loop, node("Expand", "x k", "y")]
    proto = simple(nodes, {"x": X}, initializers={"n": np.array(10**12)})
    assert refusal(tmp_path, proto) == [
        "node 'forever' (Loop, opset 17): it runs for more than 4096 iterations"
    ]


def test_all_nodes_that_cant_be_expressed(tmp_path: Path) -> None:
    nodes = [
        node("NonZero", "x", "where", name="find"),
        node("Gather", "x where", "found"),
        node("ImageDecoder", "x", "y", name="decode"),
        node("TopK", "x k", "top at", name="top"),
        node("Loop", "k _ x", "l s", name="loop", body=loop_body("Identity")),
    ]
    arrays = {"x": X, "k": np.array([1])}
    inputs = "and it is computed from the program's inputs"
    known = "make it an initializer, or a value that follows from shapes"
    assert refusal(tmp_path, simple(nodes, arrays, "found y top", opset=20)) == [
        "node 'find' (NonZero, opset 20): the content of its input 'x' must be known at import "
        f"time, {inputs} ({known})",
        "node 'decode' (ImageDecoder, opset 20): no codec for images has a place in a program "
        "(decode images before they are given to the program)",
        "node 'top' (TopK, opset 20): the content of its input 'k' must be known at import time, "
        f"{inputs} ({known})",
        "node 'loop' (Loop, opset 20): its trip count depends on the program's inputs "
        "(make it an initializer: the loop is unrolled)",
    ]


def test_a_shape_that_makes_no_sense(tmp_path: Path) -> None:
    shape = {"s": np.array([7, -1])}
    reshape = node("Reshape", "x s", "y", name="r")
    assert refusal(tmp_path, simple(reshape, {"x": X}, initializers=shape)) == [
        "node 'r' (Reshape, opset 17): can't reshape [2, 3] to [7, -1]"
    ]


def test_same_model_same_program(tmp_path: Path) -> None:
    proto = simple(
        [node("Softmax", "x", "p"), node("Add", "p w", "y")], {"x": X}, initializers={"w": X}
    )
    first, second = imported(tmp_path, proto), imported(tmp_path, proto)
    assert first.program == second.program
