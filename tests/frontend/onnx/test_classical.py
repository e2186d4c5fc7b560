"""Operators of scikit-learn's models compute what ONNX Runtime does, for any number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from autopar import InferenceSession
from autopar.frontend.onnx.model.problems import ModelError
from tests.frontend.onnx.graphs import FLOAT, INT64, Array, graph, node

ML = "ai.onnx.ml"
LINES = {"coefficients": [0.5, -1.0, 2.0, 1.0, 0.25, -0.5], "intercepts": [0.1, -0.2]}


def write(folder: Path, kind: int, nodes: list[onnx.NodeProto], outputs: str, width: int) -> Path:
    body = graph(nodes, {"x": (kind, ["rows", width])}, outputs.split())
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(body, opset_imports=opsets, ir_version=10), path)
    return path


def one(op_type: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return node(op_type, "x", outputs, domain=ML, **attributes)


CASES = {
    "scaler": (FLOAT, one("Scaler", offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, 0.1])),
    "one scale": (FLOAT, one("Scaler", offset=[1.0], scale=[0.5])),
    "of integers": (INT64, one("Scaler", offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, 0.1])),
    **{norm: (FLOAT, one("Normalizer", norm=norm)) for norm in ("L1", "L2")},
    "binarizer": (FLOAT, one("Binarizer", threshold=0.25)),
    "regressor": (FLOAT, one("LinearRegressor", targets=2, **LINES)),
    "one target": (FLOAT, one("LinearRegressor", coefficients=[1.0, 2.0, 3.0], intercepts=[1.0])),
    **{
        f"classifier, {after}": (
            FLOAT,
            one("LinearClassifier", "y z", classlabels_ints=[3, 7], post_transform=after, **LINES),
        )
        for after in ("NONE", "LOGISTIC", "SOFTMAX")
    },
    "one hot": (INT64, one("OneHotEncoder", cats_int64s=[0, 2, 3])),
    "integers": (INT64, one("LabelEncoder", keys_int64s=[0, 2], values_int64s=[5, 6])),
    "numbers": (
        INT64,
        one("LabelEncoder", keys_int64s=[0, 2], values_floats=[0.5, 1.5], default_float=-2.0),
    ),
}


def drawn(kind: int, rows: int) -> Array:
    chance = np.random.default_rng(rows)
    numbers = chance.normal(size=(rows, 3)).astype(np.float32)
    return chance.integers(0, 4, (rows, 3)) if kind == INT64 else numbers


@pytest.mark.parametrize("case", CASES)
def test_operators(case: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    kind, each = CASES[case]
    path = write(tmp_path, kind, [each], " ".join(each.output), 3)
    expected = runtime.InferenceSession(path)
    with InferenceSession(path, mesh=3, virtual=True) as session:
        for rows in (1, 2, 7):
            feeds = {"x": drawn(kind, rows)}
            for mine, theirs in zip(
                session.run(None, feeds), expected.run(None, feeds), strict=True
            ):
                assert mine.dtype == theirs.dtype
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_the_largest_number_is_that_of_scikit_learn(tmp_path: Path) -> None:
    """ONNX Runtime leaves the sign of it, which onnx's own definition doesn't."""
    path = write(tmp_path, FLOAT, [one("Normalizer", norm="MAX")], "y", 3)
    x = drawn(FLOAT, 4)
    with InferenceSession(path) as session:
        (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, x / abs(x).max(1, keepdims=True), rtol=1e-6)


def test_a_pipeline(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    nodes = [
        one("Scaler", "scaled", offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, 0.1]),
        node("Constant", "", "places", value_ints=[2, 0, 1]),
        node("ArrayFeatureExtractor", "scaled places", "picked", domain=ML),
        node(
            "LinearClassifier", "picked", "label raw", domain=ML, classlabels_ints=[0, 1], **LINES
        ),
        node("Normalizer", "raw", "chances", domain=ML, norm="L1"),
    ]
    path = write(tmp_path, FLOAT, nodes, "label chances", 3)
    feeds = {"x": drawn(FLOAT, 5)}
    with InferenceSession(path, mesh=2, virtual=True) as session:
        label, chances = session.run(None, feeds)
    wanted = runtime.InferenceSession(path).run(None, feeds)
    np.testing.assert_array_equal(label, wanted[0])
    np.testing.assert_allclose(chances, wanted[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("each", "why"),
    [
        (one("ZipMap", classlabels_int64s=[0, 1, 2]), "a map of labels .*option zipmap=False"),
        (one("OneHotEncoder", cats_strings=["a"]), "labels are texts.*numbers as labels"),
        (one("OneHotEncoder", cats_int64s=[1], zeros=0), "zeros=0: .*set zeros=1"),
        (one("SVMRegressor"), "depends on the data .*as in ONNX Runtime"),
        (one("LinearRegressor", post_transform="PROBIT"), "'PROBIT'; there are NONE, LOGISTIC"),
        (one("LinearRegressor", coefficients=[1.0], targets=2), "1 coefficients for 2 results"),
    ],
)
def test_others_say_what_to_do(each: onnx.NodeProto, why: str, tmp_path: Path) -> None:
    path = write(tmp_path, FLOAT, [each], "y", 3)
    with pytest.raises(ModelError, match=why):
        InferenceSession(path)
