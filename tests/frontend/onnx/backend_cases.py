"""The test cases of onnx's own backend suite, as models with inputs and expected outputs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from autopar.frontend.onnx.export import StepModule
from autopar.frontend.onnx.importing import record_model
from autopar.frontend.onnx.load import OLDEST_OPSET, load
from autopar.frontend.onnx.problems import ModelError

Array = npt.NDArray[Any]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
_NEEDED = re.compile(
    r"input '([^']*)'(?: must be known at import time|: element type \w+ isn't supported for)"
)
_TORCH_ONLY = {
    "bfloat16": (np.uint16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e4m3fnuz": (np.uint8, torch.float8_e4m3fnuz),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
    "float8_e5m2fnuz": (np.uint8, torch.float8_e5m2fnuz),
    "float8_e8m0fnu": (np.uint8, torch.float8_e8m0fnu),
}


@dataclass(frozen=True)
class Case:
    """A model, and one set of inputs and expected outputs by name."""

    name: str
    proto: ModelProto
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    @property
    def draws(self) -> bool:
        """Whether its outputs are random: nobody else's generator draws the same."""
        zero = "zero_ratio" in self.name
        return self.name.startswith(("test_bernoulli", "test_training_dropout")) and not zero


def cases() -> Iterator[Case]:
    """Yields the cases of a supported opset whose inputs and outputs are tensors of numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = [test for kind in KINDS for test in load_model_tests(kind=kind)]
    for test in tests:
        folder = Path(test.model_dir) if test.model_dir else None
        proto = test.model or onnx.load(folder / "model.onnx")  # type: ignore[operator]
        opsets = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
        if not opsets or opsets[0] < OLDEST_OPSET:
            continue
        names = [value.name for value in proto.graph.input]
        outputs = [value.name for value in proto.graph.output]
        for given, expected in test.data_sets or ([_stored(folder)] if folder else []):
            arrays = dict(zip(names, map(_array, given), strict=False))
            wanted = dict(zip(outputs, map(_array, expected), strict=False))
            if all(_is_numeric(array) for array in (*arrays.values(), *wanted.values())):
                yield Case(test.name, proto, arrays, wanted)


def _stored(folder: Path) -> tuple[list[TensorProto], list[TensorProto]]:
    data = folder / "test_data_set_0"
    counts = (len(list(data.glob(f"{kind}_*.pb"))) for kind in ("input", "output"))
    inputs, outputs = (
        [TensorProto.FromString((data / f"{kind}_{at}.pb").read_bytes()) for at in range(count)]
        for kind, count in zip(("input", "output"), counts, strict=True)
    )
    return inputs, outputs


def _array(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "OSU"


def freeze(case: Case, folder: Path) -> tuple[Path, dict[str, Array]]:
    """Writes a case's model with the inputs that must be known at import time as initializers.

    Returns:
        The model's file, and the inputs that are left.

    Raises:
        ModelError: If the model can't be imported even so.
    """
    proto = ModelProto()
    proto.CopyFrom(case.proto)
    stored = {tensor.name for tensor in proto.graph.initializer}
    free = {name: array for name, array in case.inputs.items() if name not in stored}
    path = folder / "model.onnx"
    while True:
        path.write_bytes(proto.SerializeToString())
        try:
            record_model(load(path), {name: array.shape for name, array in free.items()}, {})
            return path, free
        except ModelError as error:
            needed = set(_NEEDED.findall(str(error))) & set(free) or _small(error, free)
            if not needed:
                raise
        kept = [value for value in proto.graph.input if value.name not in needed]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
        for name in sorted(needed):
            proto.graph.initializer.append(numpy_helper.from_array(free.pop(name), name))


def _small(error: ModelError, free: Mapping[str, Array]) -> set[str]:
    """Returns inputs that may be the shape that an inlined function lacks."""
    if "must be known" not in str(error) and "depends on the program's inputs" not in str(error):
        return set()
    return {name for name, a in free.items() if a.dtype.kind in "iub" and a.ndim <= 1}


def run_steps(path: Path, free: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Runs what the import records of a model, eagerly: no export, so it is fast."""
    recorded = record_model(load(path), {name: array.shape for name, array in free.items()}, {})
    module = StepModule(recorded.recorder, list(recorded.inputs.values()), recorded.outputs)
    with torch.no_grad():
        results = module(*(as_tensor(free[name]) for name in recorded.inputs))
    labels = [value.name for value in recorded.model.proto.graph.output]
    return dict(zip(labels, results, strict=True))


def as_tensor(array: Array) -> torch.Tensor:
    """Returns an array as a tensor; dtypes that numpy lacks come as those of ml_dtypes."""
    if array.dtype.name in _TORCH_ONLY:
        bits, dtype = _TORCH_ONLY[array.dtype.name]
        flat = torch.from_numpy(np.ascontiguousarray(array).view(bits).reshape(-1).copy())
        return flat.view(dtype).reshape(array.shape)
    return torch.from_numpy(np.array(array, order="C"))


def difference(case: Case, results: Mapping[str, torch.Tensor]) -> str:
    """Returns what is wrong with the results of a case; "" if nothing is."""
    for name, expected in case.outputs.items():
        tensor = results[name]
        wide = tensor.dtype.is_floating_point
        got = tensor.to(torch.float64).numpy() if wide else tensor.numpy()
        if got.shape != expected.shape:
            return f"{name} has shape {got.shape} instead of {expected.shape}"
        if case.draws:
            continue
        # Results near zero, and of few bits: half a unit in the last place of numbers near one.
        atol = {torch.bfloat16: 1e-2, torch.float16: 1e-3}.get(tensor.dtype, 1e-5)
        number = np.complex128 if expected.dtype.kind == "c" else np.float64
        a, b = got.astype(number), expected.astype(number)
        if not np.allclose(a, b, rtol=1e-3, atol=atol, equal_nan=True):
            return f"{name} differs by {np.nanmax(np.abs(a - b))}"
    return ""
