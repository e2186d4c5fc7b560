"""The public Python interface, on a model made here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import autopar
from autopar.analysis.reports.summary import render_summary, summarize


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    """Returns the file of relu(x @ w1) @ w2 with a symbolic batch."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.normal(size=(12, 20)).astype(np.float32),
        "w2": random.normal(size=(20, 6)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"], name="up"),
            helper.make_node("Relu", ["h"], ["r"], name="act"),
            helper.make_node("MatMul", ["r", "w2"], ["y"], name="down"),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 6])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = tmp_path / "mlp.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.parametrize(
    "shard", [None, {"w1": [None, "tp"]}, {"w1": [1, 0]}, {"h": [("tp", "dp"), -1]}]
)
def test_compile_and_run(mlp: Path, tmp_path: Path, shard: dict[str, list[object]] | None) -> None:
    build = tmp_path / "build"
    autopar.compile_onnx(mlp, build, mesh="dp=2,tp=3", dims={"batch": 5}, shard=shard)  # type: ignore[arg-type]
    x = np.random.default_rng(1).normal(size=(5, 12)).astype(np.float32)
    found = autopar.runtime.run(build, {"x": x}, virtual=True)["y"]
    whole = autopar.runtime.run(build, {"x": x}, serial=True)["y"]
    np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-5)
    assert autopar.runtime.verify(build, {"x": x}).ok


@pytest.mark.parametrize("strategy", ["none", None])
def test_no_strategy_leaves_only_the_pins(mlp: Path, tmp_path: Path, strategy: str | None) -> None:
    compiled = autopar.compile_onnx(
        mlp, tmp_path / "build", mesh="2", dims={"batch": 4}, strategy=strategy
    )
    layouts = [value.dist for value in compiled.serial.main.values.values() if value.dist]
    assert layouts
    assert all(layout.is_replicated for layout in layouts)


def test_a_pin_that_matches_nothing_names_near_misses(mlp: Path, tmp_path: Path) -> None:
    with pytest.raises(autopar.AutoparError, match=r"matches no .*did you mean w1"):
        autopar.compile_onnx(
            mlp, tmp_path / "build", mesh="2", dims={"batch": 4}, shard={"w11": [0, -1]}
        )
    assert not (tmp_path / "build").exists()


def test_without_a_build_only_the_object_is_made(mlp: Path, tmp_path: Path) -> None:
    made = autopar.compile_onnx(mlp, mesh="dp=2", dims={"batch": 4}, strategy="data:dp")
    assert isinstance(made, autopar.CompiledModel)
    assert [path.name for path in tmp_path.iterdir()] == ["mlp.onnx"]
    made.save(tmp_path / "build")
    assert made.summary() == render_summary(summarize(tmp_path / "build"))
    assert made.plan() == autopar.plan_of(tmp_path / "build")
    assert str(made.profile("h100")) == str(autopar.profile(tmp_path / "build", cluster="h100"))
    assert {entry.category for entry in made.report} >= {"origins"}
    assert repr(made) == "<CompiledModel mlp: 3 ops on dp=2>"
    assert len(repr([made])) < 100


def test_importing_autopar_costs_nothing() -> None:
    heavy = "torch", "onnx", "numpy"
    code = f"import autopar, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_mean_that_cancels_is_no_difference(tmp_path: Path) -> None:
    """The mean of what a layer norm returns is 0 but for rounding, which depends on the order."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.normal(size=(32, 64)).astype(np.float32),
        "w2": random.normal(size=(64, 32)).astype(np.float32),
        "scale": np.ones(32, np.float32),
        "shift": np.zeros(32, np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["m"]),
            helper.make_node("LayerNormalization", ["m", "scale", "shift"], ["n"]),
            helper.make_node("LayerNormalization", ["n", "scale", "shift"], ["y"]),
        ],
        "norms",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 32])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(model, tmp_path / "norms.onnx")
    build = tmp_path / "build"
    autopar.compile_onnx(tmp_path / "norms.onnx", build, mesh="4", strategy="tensor:0")
    x = random.normal(size=(8, 32)).astype(np.float32)
    assert autopar.runtime.verify(build, {"x": x}).ok
