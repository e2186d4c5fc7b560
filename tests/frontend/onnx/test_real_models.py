"""Real models: the imported program, run on one device, equals ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from autopar.frontend.onnx import import_onnx
from autopar.runtime.execute.serial import run_serial
from tests.given.models import MODELS, model_inputs, model_path

TOLERANCE = 1e-4
"""Largest difference, as a share of the largest output."""


@pytest.mark.models
@pytest.mark.parametrize("name", MODELS)
def test_equals_onnxruntime(name: str) -> None:
    path, given = model_path(name), model_inputs(name)
    result = import_onnx(path, dims=given.dims, input_shapes=given.input_shapes)
    assert all(op.loc.name for op in result.program.main.ops)
    tensors = {label: torch.from_numpy(np.array(array)) for label, array in given.arrays.items()}
    outputs = run_serial(result.program, result.weights, tensors)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options)
    expected = session.run(None, dict(given.arrays))
    for output, array in zip(session.get_outputs(), expected, strict=True):
        got = outputs[output.name].numpy()
        assert got.dtype == array.dtype
        difference = np.abs(got.astype(np.float64) - array).max()
        assert difference <= TOLERANCE * max(1e-9, np.abs(array).max()), output.name


@pytest.mark.models
def test_minilm_keeps_the_names_of_its_modules() -> None:
    given = model_inputs("minilm", batch=2, length=16)
    result = import_onnx(model_path("minilm"), dims=given.dims)
    layer = "model.0.auto_model.encoder.layer.0"
    for part in ("attention.self.query", "attention.output.dense", "intermediate.dense"):
        assert result.weights[f"{layer}.{part}.weight"].ndim == 2
        assert result.weights[f"{layer}.{part}.bias"].ndim == 1
