"""Short ways to write ONNX models down, import them and run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from autopar.frontend.onnx import ImportedModel, import_onnx
from autopar.runtime.execute.serial import run_serial

Array = npt.NDArray[Any]
Shape = Sequence[int | str | None]


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """A node; inputs and outputs are names with blanks between, `_` for one that is left out."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op_type, names, outputs.split(), **attributes)


def graph(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[int, Shape | None]],
    outputs: Sequence[str],
    initializers: Mapping[str, Array] | None = None,
) -> GraphProto:
    """A graph; outputs have no declared type."""
    stored = [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()]
    given = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    returned = [onnx.ValueInfoProto(name=name) for name in outputs]
    return helper.make_graph(nodes, "test", given, returned, stored)


def model(body: GraphProto, opset: int = 17, **rest: Any) -> ModelProto:
    """A model of one opset, or of those in `opset_imports`."""
    imports = rest.pop("opset_imports", [helper.make_opsetid("", opset)])
    return helper.make_model(body, opset_imports=imports, ir_version=10, **rest)


def simple(
    nodes: Sequence[NodeProto] | NodeProto,
    arrays: Mapping[str, Array],
    outputs: str = "y",
    initializers: Mapping[str, Array] | None = None,
    opset: int = 17,
) -> ModelProto:
    """A model whose inputs are like `arrays`."""
    listed = [nodes] if isinstance(nodes, NodeProto) else list(nodes)
    inputs = {
        name: (helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    }
    return model(graph(listed, inputs, outputs.split(), initializers), opset)


def save(folder: Path, proto: ModelProto) -> Path:
    """Writes a model down as it is, however broken."""
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def imported(folder: Path, proto: ModelProto, **options: Any) -> ImportedModel:
    """Imports a model."""
    return import_onnx(save(folder, proto), **options)


def run(result: ImportedModel, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Runs an imported model's program."""
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    outputs = run_serial(result.program, result.weights, tensors)
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def attribute(proto: NodeProto, name: str) -> AttributeProto:
    """The attribute of a node."""
    return next(item for item in proto.attribute if item.name == name)


BOOL, FLOAT, INT64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64
