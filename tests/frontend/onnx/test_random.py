"""ONNX operators that draw random numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.frontend.onnx.graphs import FLOAT, graph, imported, model, node, run, simple

X = np.full((64, 32), 0.25, dtype=np.float32)


def test_distributions(tmp_path: Path) -> None:
    nodes = [
        node("RandomNormal", "", "normal", shape=[64, 32], mean=3.0, scale=2.0),
        node("RandomUniform", "", "uniform", shape=[64, 32], low=-1.0, high=2.0, dtype=11),
        node("RandomNormalLike", "x", "normal_like"),
        node("RandomUniformLike", "x", "uniform_like", dtype=10),
        node("Bernoulli", "x", "flags"),
        node("Multinomial", "log", "drawn", sample_size=500),
    ]
    weights = np.log(np.array([[1, 3], [4, 0]], dtype=np.float32) + 1e-30)
    outputs = "normal uniform normal_like uniform_like flags drawn"
    result = imported(tmp_path, simple(nodes, {"x": X, "log": weights}, outputs))
    assert len([op for op in result.program.main.ops if "seed" in op.operands]) == 6
    found = run(result, {"x": X, "log": weights, "seed": np.array(1)})
    means = {name: float(array.mean()) for name, array in found.items()}
    assert abs(means["normal"] - 3) < 0.2
    assert abs(means["uniform"] - 0.5) < 0.1
    assert abs(means["normal_like"]) < 0.1
    assert abs(means["uniform_like"] - 0.5) < 0.05
    assert abs(means["flags"] - 0.25) < 0.05
    assert found["uniform"].dtype == np.float64
    assert found["uniform_like"].dtype == np.float16
    assert found["drawn"].dtype == np.int32
    assert abs(float(found["drawn"][0].mean()) - 0.75) < 0.1
    assert int(found["drawn"][1].max()) == 0


def test_numbers_are_never_drawn_at_import_time(tmp_path: Path) -> None:
    nodes = [
        node("RandomNormal", "", "noise", shape=[2, 3]),
        node("Bernoulli", "half", "flags"),
        node("Add", "noise flags", "sum"),
        node("Add", "sum x", "y"),
    ]
    half = {"half": np.full((2, 3), 0.5, dtype=np.float32)}
    x = np.zeros((2, 3), dtype=np.float32)
    result = imported(tmp_path, simple(nodes, {"x": x}, initializers=half))
    found = [run(result, {"x": x, "seed": np.array(seed)})["y"] for seed in (0, 1, 0)]
    assert not np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_dropout_in_training(tmp_path: Path) -> None:
    constants = {"ratio": np.array(0.25, dtype=np.float32), "training": np.array(True)}
    dropout = node("Dropout", "x ratio training", "y mask")
    result = imported(tmp_path, simple(dropout, {"x": X}, "y mask", constants))
    found = run(result, {"x": X})
    assert np.array_equal(found["y"], np.where(found["mask"], X / np.float32(0.75), 0))
    assert abs(float(found["mask"].mean()) - 0.75) < 0.05


def test_dropout_of_a_constant_at_inference_is_the_constant(tmp_path: Path) -> None:
    nodes = [node("Dropout", "shape", "same"), node("Reshape", "x same", "y")]
    result = imported(tmp_path, simple(nodes, {"x": X}, initializers={"shape": np.array([32, 64])}))
    assert [op.kind for op in result.program.main.ops] == ["aten.view.default"]


def test_a_seed_of_a_node_is_reported(tmp_path: Path) -> None:
    body = graph([node("RandomNormal", "", "y", shape=[2], seed=1.5, name="noise")], {}, ["y"])
    (entry,) = imported(tmp_path, model(body)).report
    assert (entry.category, entry.subject) == ("ignored", "seed of node 'noise'")
    assert entry.detail == "its numbers depend on the seed that the program is given"


def test_an_input_that_is_called_seed(tmp_path: Path) -> None:
    nodes = [node("RandomNormalLike", "seed", "noise"), node("Add", "noise seed", "y")]
    body = graph(nodes, {"seed": (FLOAT, [2])}, ["y"])
    result = imported(tmp_path, model(body))
    assert [port.label for port in result.program.signature.inputs] == ["seed", "seed.1"]
    run(result, {"seed": np.zeros(2, dtype=np.float32), "seed.1": np.array(3)})
