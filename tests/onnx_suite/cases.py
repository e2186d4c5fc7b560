"""The cases of onnx's own backend suite: models with inputs and the outputs that onnx expects."""

from __future__ import annotations

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
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

Array = npt.NDArray[Any]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
"""The kinds of cases. Those of kind "real" are well-known networks with made-up weights."""
_LIGHT = "onnx/backend/test/data/light/"
"""Where the networks lie that are part of onnx, as the suite's addresses say."""
_BITS = {
    "bfloat16": (np.uint16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e4m3fnuz": (np.uint8, torch.float8_e4m3fnuz),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
    "float8_e5m2fnuz": (np.uint8, torch.float8_e5m2fnuz),
    "float8_e8m0fnu": (np.uint8, torch.float8_e8m0fnu),
}


@dataclass(frozen=True)
class Case:
    """A model, and one set of inputs and expected outputs.

    Attributes:
        name: onnx's name of the case.
        kind: One of `KINDS`.
        proto: The model.
        inputs: By name: arrays, or whatever else onnx feeds (strings, sequences, optionals).
        outputs: By name, likewise.
        rtol: The relative tolerance with which onnx compares outputs of this case.
        atol: The absolute one.
    """

    name: str
    kind: str
    proto: ModelProto
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    rtol: float
    atol: float


def load_cases(*kinds: str) -> list[Case]:
    """Returns the cases of these kinds, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            case for kind in kinds for test in load_model_tests(kind=kind) for case in _sets(test)
        ]
    return sorted(found, key=lambda case: case.name)


def _sets(test: TestCase) -> Iterator[Case]:
    """Yields a case for each set of data; a second set is called `name.1`."""
    proto, folder = test.model, Path(test.model_dir or "")
    light = bool(test.url and test.url.startswith(_LIGHT))
    if light:
        path = Path(onnx.__file__).parent / str(test.url).removeprefix("onnx/")
        proto = onnx.load(path)
        test.data_sets = [_made_up(path, proto)]
    elif proto is None:
        proto = onnx.load(folder / "model.onnx")
    labels = _unstored(proto) if light else [value.name for value in proto.graph.input]
    results = [value.name for value in proto.graph.output]
    sets = test.data_sets or [_stored(path) for path in sorted(folder.glob("test_data_set_*"))]
    for at, (given, expected) in enumerate(sets):
        yield Case(
            name=f"{test.name}.{at}" if at else test.name,
            kind=test.kind,
            proto=proto,
            inputs=dict(zip(labels, map(_content, given), strict=False)),
            outputs=dict(zip(results, map(_content, expected), strict=False)),
            rtol=test.rtol,
            atol=test.atol,
        )


def _unstored(proto: ModelProto) -> list[str]:
    """Returns the inputs that have no value in the model."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    return [value.name for value in proto.graph.input if value.name not in stored]


def _made_up(path: Path, proto: ModelProto) -> tuple[list[Array], list[TensorProto]]:
    """Returns the inputs that onnx's runner makes up for a network, and the stored outputs."""
    names = _unstored(proto)
    given = [value for value in proto.graph.input if value.name in names]
    outputs = path.parent.glob(f"{path.stem}_output_*.pb")
    return (
        [Runner.generate_dummy_data(value) for value in given],
        [TensorProto.FromString(output.read_bytes()) for output in sorted(outputs)],
    )


def _stored(folder: Path) -> tuple[list[TensorProto], list[TensorProto]]:
    def protos(which: str) -> list[TensorProto]:
        count = len(list(folder.glob(f"{which}_*.pb")))
        paths = (folder / f"{which}_{at}.pb" for at in range(count))
        return [TensorProto.FromString(path.read_bytes()) for path in paths]

    return protos("input"), protos("output")


def _content(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def as_tensor(array: Array) -> torch.Tensor:
    """Returns an array as a tensor; dtypes that numpy lacks come as those of ml_dtypes."""
    if array.dtype.name in _BITS:
        bits, dtype = _BITS[array.dtype.name]
        flat = torch.from_numpy(np.ascontiguousarray(array).view(bits).reshape(-1).copy())
        return flat.view(dtype).reshape(array.shape)
    return torch.from_numpy(np.array(array, order="C"))
