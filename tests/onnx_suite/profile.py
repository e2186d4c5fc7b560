"""The static profile: which cases a compiler of static programs must run, and on what terms.

A case is in the profile if it is one of onnx's own operator or model cases ("node", "simple"), all
of its nodes are of the standard domain, and each of its inputs and outputs is a dense tensor of a
fixed shape and of a standard type: what numpy has, but for strings and complex numbers.

Operands that decide the shape of a result, or that an operator needs at compile time for another
reason, are constants of a static program. `VALUE_OPERANDS` lists them all; in each case they are
frozen to the case's data, before anything else is looked at. No other input is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from tests.onnx_suite.cases import Array, Case

KINDS = ("node", "simple")
STANDARD_TYPES = frozenset(
    (
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL),
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    )
)
_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
VALUE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(_REDUCTIONS, (1,)),
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""Positions of the inputs of each operator that a static program has as constants."""


def outside(case: Case) -> str:
    """Returns why a case isn't in the static profile; "" if it is."""
    if case.kind not in KINDS:
        return f"kind {case.kind}"
    domains = {node.domain for node in case.proto.graph.node} - {"", "ai.onnx"}
    if domains:
        return f"domain {min(domains)}"
    for value in (*case.proto.graph.input, *case.proto.graph.output):
        reason = _not_static(value)
        if reason:
            return reason
    return ""


def _not_static(value: ValueInfoProto) -> str:
    which = value.type.WhichOneof("value")
    if which != "tensor_type":
        return f"a {str(which).removesuffix('_type')}"
    tensor = value.type.tensor_type
    if tensor.elem_type not in STANDARD_TYPES:
        return f"type {TensorProto.DataType.Name(tensor.elem_type)}"
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return "a dynamic shape"
    return ""


def freeze(case: Case, operators: Mapping[str, ModelProto]) -> tuple[ModelProto, dict[str, Array]]:
    """Returns the model with its value operands as constants, and the inputs that are left.

    onnx tests the definition of an operator by a case of the same name with `_expanded` after it,
    which has the same inputs: they are frozen there, too.

    Args:
        case: The case.
        operators: The models of all cases by name.
    """
    original = operators.get(case.name.removesuffix("_expanded"), case.proto)
    names = [value.name for value in original.graph.input]
    frozen = {at for at, name in enumerate(names) if name in _value_inputs(original.graph)}
    names = [value.name for value in case.proto.graph.input]
    chosen = {names[at] for at in frozen if at < len(names)} | _value_inputs(case.proto.graph)
    stored = {tensor.name for tensor in case.proto.graph.initializer}
    proto = ModelProto()
    proto.CopyFrom(case.proto)
    kept = [value for value in proto.graph.input if value.name not in chosen - stored]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    for name in sorted(chosen - stored):
        proto.graph.initializer.append(numpy_helper.from_array(case.inputs[name], name))
    left = {name: case.inputs[name] for name in case.inputs if name not in chosen | stored}
    return proto, left


def _value_inputs(graph: GraphProto) -> set[str]:
    """Returns the inputs of a graph that are value operands, directly, of one of its nodes."""
    inputs = {value.name for value in graph.input}
    return {name for node in graph.node for name in _value_operands(node) if name in inputs}


def _value_operands(node: NodeProto) -> Iterable[str]:
    positions = VALUE_OPERANDS.get(node.op_type, ())
    return (node.input[at] for at in positions if at < len(node.input))
