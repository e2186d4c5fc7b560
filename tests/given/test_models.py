"""The real models that tests run: found or said to be missing, with inputs that fit them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.helper import tensor_dtype_to_np_dtype

from tests.given import models


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models, "FETCHED", tmp_path)
    monkeypatch.setattr("sys.path", [])


@pytest.mark.usefixtures("nowhere")
def test_an_absent_model_skips_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="package magika is not installed"):
        models.model_path("magika")


@pytest.mark.usefixtures("nowhere")
def test_an_absent_model_fails_the_test_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="package magika is not installed"):
        models.model_path("magika")


@pytest.mark.models
@pytest.mark.parametrize("name", models.MODELS)
def test_inputs_fit_the_model(name: str) -> None:
    graph = onnx.load(models.model_path(name), load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    wanted = {value.name: value.type.tensor_type for value in graph.input}
    given = models.model_inputs(name)
    assert given.arrays.keys() == wanted.keys() - stored
    for label, array in given.arrays.items():
        sizes = wanted[label].shape.dim
        assert array.dtype == tensor_dtype_to_np_dtype(wanted[label].elem_type)
        assert len(sizes) == array.ndim
        for size, actual in zip(sizes, array.shape, strict=True):
            if size.dim_param in given.dims:
                assert actual == given.dims[size.dim_param]
            elif size.dim_value > 0:
                assert actual == size.dim_value
    assert given.input_shapes.items() <= {k: v.shape for k, v in given.arrays.items()}.items()


@pytest.mark.parametrize("name", models.MODELS)
def test_inputs_are_the_same_for_the_same_seed(name: str) -> None:
    first, again = (models.model_inputs(name, seed=3, batch=2).arrays for _ in range(2))
    other = models.model_inputs(name, seed=4, batch=2).arrays
    assert all(np.array_equal(first[label], again[label]) for label in first)
    assert any(not np.array_equal(first[label], other[label]) for label in first)
