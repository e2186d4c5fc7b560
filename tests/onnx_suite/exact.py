"""What a model computes in float64, by onnx's reference evaluator.

onnx generates what it expects of a case in the type of the case. In a few cases of float16 and of
float32 transforms, the rounding errors of that are larger than the tolerance. A result that is
nearer to the exact one than what onnx expects isn't wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from google.protobuf.message import Message
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.onnx_suite.cases import Array

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def exact_outputs(proto: ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the outputs of a model that computes in float64 whatever it says of floats.

    Raises:
        Exception: Whatever onnx's evaluator raises on a model that it can't run in float64.
    """
    wide = ModelProto()
    wide.CopyFrom(proto)
    _widen(wide)
    given = {name: _wide_array(array) for name, array in inputs.items()}
    labels = [value.name for value in wide.graph.output]
    return dict(zip(labels, ReferenceEvaluator(wide).run(None, given), strict=True))


def _wide_array(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _widen(message: Message) -> None:
    """Turns tensors, types and casts of floats into those of float64, however deep they are."""
    if isinstance(message, TensorProto):
        if message.data_type in _FLOATS:
            array = numpy_helper.to_array(message).astype(np.float64)
            message.CopyFrom(numpy_helper.from_array(array, message.name))
        return
    if isinstance(message, TypeProto.Tensor) and message.elem_type in _FLOATS:
        message.elem_type = TensorProto.DOUBLE
    if isinstance(message, NodeProto) and message.op_type == "Cast":
        for attribute in message.attribute:
            if attribute.name == "to" and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for item in (value,) if isinstance(value, Message) else value:
            _widen(item)
